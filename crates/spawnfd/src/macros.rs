// SPDX-License-Identifier: MIT OR Apache-2.0
//! Macros for methods that many public types share.

/// Implements `ALL`, `name` and `Display` for an enum, from a list of its values and their names. `ALL` is a slice,
/// so that a later version can add values. `names!(exhaustive …)` leaves `ALL` to an enum that gets no more values.
macro_rules! names {
    ($type:ident { $($value:ident = $name:literal,)+ }) => {
        impl $type {
            /// All values.
            pub const ALL: &'static [$type] = &[$($type::$value),+];
        }

        names!(exhaustive $type { $($value = $name,)+ });
    };
    (exhaustive $type:ident { $($value:ident = $name:literal,)+ }) => {
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

/// Implements a setter for each listed field of an options type. The setter takes and returns the options by value.
/// Each entry has the field, the type of the setter's argument, and the field's new value.
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
