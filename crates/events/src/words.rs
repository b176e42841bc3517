//! Enumerations whose variants have a word that never changes: the word is what files and JSON hold.

/// Declares an enumeration with `ALL`, `name`, `from_name` and `Display`, each variant stated once with its word.
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name {
            $($(#[$doc])* #[doc = concat!("Its word is `", $word, "`.")] $variant,)+
        }

        impl $name {
            /// All of them, in order.
            $vis const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            /// The word for it. These words never change.
            $vis const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }

            /// The inverse of `name`.
            $vis fn from_name(name: &str) -> Option<$name> {
                match name {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use words;
