//! Symbols that programs link, and that do nothing.

/// Declares functions of C's that answer always the same, whatever they are given.
macro_rules! missing {
    ($kind:ty = $answer:expr; $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> $kind {
                $answer
            }
        )*
    };
}

pub(crate) use missing;
