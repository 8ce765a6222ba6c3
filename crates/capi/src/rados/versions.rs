//! Functions whose names have a version in Debian's library: programs that were linked with that ask for it.
//!
//! Rust has no word for that, and exports names without a version. So the assembler makes the names, as places from which it goes on to
//! the functions.

use super::space::pool_stat;
use std::ffi::c_int;

/// `rados_tmap_put`, `rados_tmap_get` and `rados_tmap_update`, whatever they are given.
extern "C" fn tmap() -> c_int {
    -libc::EOPNOTSUPP
}

#[cfg(target_arch = "x86_64")]
macro_rules! goes_on {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! goes_on {
    () => {
        "b"
    };
}

macro_rules! versioned {
    ($($name:literal: $function:path)*) => {
        $(core::arch::global_asm!(
            concat!(".globl versioned_", $name),
            concat!(".type versioned_", $name, ", @function"),
            concat!("versioned_", $name, ":"),
            concat!(goes_on!(), " {function}"),
            concat!(".size versioned_", $name, ", . - versioned_", $name),
            concat!(".symver versioned_", $name, ", ", $name, "@@LIBRADOS_14.2.0"),
            function = sym $function,
        );)*
    };
}

versioned! {
    "rados_ioctx_pool_stat": pool_stat
    "rados_tmap_get": tmap
    "rados_tmap_put": tmap
    "rados_tmap_update": tmap
}
