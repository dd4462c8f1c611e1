// SPDX-License-Identifier: MIT OR Apache-2.0
//! Macros for methods that many public types share.

/// Gives an enum its list of values and their names: `ALL`, `name` and `Display`.
macro_rules! names {
    ($type:ident { $($value:ident = $name:literal,)+ }) => {
        impl $type {
            /// All values.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$value),+];

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

/// Gives options a setter for each field, by value: the type of its argument, and the field's new value.
macro_rules! setters {
    ($type:ident { $($(#[$doc:meta])+ $field:ident: $argument:ty => $value:expr;)+ }) => {
        impl $type {
            $(
                $(#[$doc])+
                pub fn $field(mut self, $field: $argument) -> $type {
                    self.$field = $value;
                    self
                }
            )+
        }
    };
}
