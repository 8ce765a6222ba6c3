//! Another time of day for programs.

/// Gives programs another time of day, and leaves them the clock that nobody sets.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The environment in which a program has another time of day: so much later or earlier, as `+7m` or `-90d`.
pub fn at_another_time(difference: &str) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", FAKETIME.to_owned()),
        ("FAKETIME", difference.to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        // It would leave files behind when a program is killed.
        ("FAKETIME_DISABLE_SHM", "1".to_owned()),
    ]
}
