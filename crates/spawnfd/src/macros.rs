// SPDX-License-Identifier: MIT OR Apache-2.0
//! Macros for methods that many public types share.

/// Implements `name` and `Display` for an enum, from a list of its values and their names.
macro_rules! names {
    ($type:ident { $($value:ident = $name:literal,)+ }) => {
        impl $type {
            /// A short lower-case name, the same in every language.
            pub fn name(self) -> &'static str {
                match self { $($type::$value => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Defines an enum with a name for each value: `names!`, and `ALL`, a slice of all values, so that a later version can
/// add values.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[doc = $doc:literal])+ $(@ #[$attribute:ident])? $value:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        pub enum $type {
            $($(#[doc = $doc])+ $(#[$attribute])? $value,)+
        }

        impl $type {
            /// All values.
            pub const ALL: &'static [$type] = &[$($type::$value),+];
        }

        names!($type { $($value = $name,)+ });
    };
}

/// Defines an enum with a name for each value: `named!`, and `WORDS`, the names with their documentation.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[doc = $doc:literal])+ $(@ #[$attribute:ident])? $value:ident = $name:literal,)+ }) => {
        named! {
            $(#[$meta])*
            pub enum $type {
                $($(#[doc = $doc])+ $(@ #[$attribute])? $value = $name,)+
            }
        }

        impl $type {
            /// The names of all values, and their documentation.
            #[doc(hidden)]
            pub const WORDS: &'static [$crate::option::Word] = &[$(($name, concat!($($doc, "\n"),+)),)+];
        }

        impl $crate::option::OptionValue for $type {
            fn from_value(value: &$crate::option::Value) -> std::result::Result<$type, String> {
                $crate::option::word(value, $type::ALL.iter().map(|&each| (each.name(), each)))
            }

            fn to_value(&self) -> $crate::option::Value {
                self.name().into()
            }
        }
    };
}

/// Defines an options type: its fields with their types and defaults, and a setter for each field. The setter takes and
/// returns the options by value.
///
/// An entry has the setter's documentation, the field, its type and its default. If the field's new value is not the
/// setter's argument itself, the entry also has the arguments and the value. `with` adds a field without a setter.
macro_rules! settings {
    ($(#[$meta:meta])* pub struct $type:ident $(with $extra:ident: $extra_type:ty)?; $(
        $(#[$doc:meta])+
        $field:ident: $of:ty = $default:expr $(, ($($argument:ident: $given:ty),+) => $value:expr)?;
    )+) => {
        $(#[$meta])*
        pub struct $type {
            $(pub(crate) $field: $of,)+
            $(pub(crate) $extra: $extra_type,)?
        }

        impl Default for $type {
            fn default() -> $type {
                $type { $($field: $default,)+ $($extra: Default::default(),)? }
            }
        }

        impl $type {
            $(settings! { @setter $type, $(#[$doc])+ $field: $of $(, ($($argument: $given),+) => $value)? })+
        }
    };
    (@setter $type:ident, $(#[$doc:meta])+ $field:ident: $of:ty) => {
        settings! { @setter $type, $(#[$doc])+ $field: $of, ($field: $of) => $field }
    };
    (@setter $type:ident, $(#[$doc:meta])+ $field:ident: $of:ty, ($($argument:ident: $given:ty),+) => $value:expr) => {
        $(#[$doc])+
        pub fn $field(mut self, $($argument: $given),+) -> $type {
            self.$field = $value;
            self
        }
    };
}

/// Defines an options type by [`settings!`], and lists its options for [`options`](crate::options): the constant
/// `OPTIONS`, and the methods `field` and `set_field`.
///
/// An entry of the table has an entry of [`settings!`], and the option's kind, group and calls. The text after the
/// type's name begins the names. `@` separates an example from the documentation.
macro_rules! options {
    ($(#[$meta:meta])* pub struct $type:ident $prefix:literal $(with $extra:ident: $extra_type:ty)?; $(
        $(#[doc = $doc:literal])+
        $(@ $(#[$example:meta])+)?
        $field:ident: $of:ty = $default:expr $(, ($($argument:ident: $given:ty),+) => $value:expr)?;
        $kind:expr, $group:ident, [$($call:ident),*];
    )+) => {
        settings! {
            $(#[$meta])*
            pub struct $type $(with $extra: $extra_type)?;
            $(
                $(#[doc = $doc])+
                $($(#[$example])+)?
                $field: $of = $default $(, ($($argument: $given),+) => $value)?;
            )+
        }

        pub(crate) const OPTIONS: &[$crate::option::OptionSpec] = &[$(
            $crate::option::OptionSpec {
                name: concat!($prefix, stringify!($field)),
                kind: $kind,
                group: $crate::option::Group::$group,
                calls: &[$($crate::option::Call::$call),*],
                optional: $crate::option::is_optional(|options: $type| options.$field),
                default: || $crate::option::OptionValue::to_value(&$type::default().$field),
                doc: concat!($($doc, "\n"),+),
            },
        )+];

        #[allow(dead_code)]
        impl $type {
            /// Returns the value of the field of this name.
            pub(crate) fn field(&self, name: &str) -> $crate::option::Value {
                match name {
                    $(stringify!($field) => $crate::option::OptionValue::to_value(&self.$field),)+
                    _ => $crate::option::Value::None,
                }
            }

            /// Sets the field of this name. Returns false if there is none.
            pub(crate) fn set_field(&mut self, name: &str, value: &$crate::option::Value) -> std::result::Result<bool, String> {
                match name {
                    $(stringify!($field) => self.$field = $crate::option::OptionValue::from_value(value)?,)+
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}

/// Implements `OptionValue` for types that are set by their setters only.
macro_rules! objects {
    ($($type:ty),+) => { $(
        impl $crate::option::OptionValue for $type {
            fn from_value(_value: &$crate::option::Value) -> std::result::Result<$type, String> {
                Err("must be an object".to_owned())
            }

            fn to_value(&self) -> $crate::option::Value {
                $crate::option::Value::None
            }
        }
    )+ };
}
