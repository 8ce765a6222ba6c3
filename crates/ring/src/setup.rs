//! Making the ring, and saying why not where the system refuses.

use io_uring::IoUring;
use std::io;

/// Why there is no ring.
#[derive(thiserror::Error, Debug)]
pub enum SetupError {
    /// `kernel.io_uring_disabled` is 2, or 1 for a process without the right group.
    #[error(
        "io_uring is disabled on this machine (kernel.io_uring_disabled = {value}); allow it with `sysctl -w \
         kernel.io_uring_disabled=0`"
    )]
    DisabledBySysctl {
        /// The sysctl's value.
        value: String,
    },
    /// The sysctl allows it, so a seccomp filter forbids it.
    #[error(
        "io_uring is refused ({source}) although kernel.io_uring_disabled allows it: a seccomp filter, as container \
         engines install it, forbids the system call; start the container with a profile that allows io_uring_setup, \
         io_uring_enter and io_uring_register (Docker: --security-opt seccomp=unconfined)"
    )]
    ForbiddenBySeccomp {
        /// What the kernel answered.
        source: io::Error,
    },
    /// The kernel has no `io_uring`, or an old one.
    #[error("this kernel's io_uring lacks what Millpond needs ({source}); Linux 6.1 or later is required")]
    TooOld {
        /// What the kernel answered.
        source: io::Error,
    },
    /// Anything else, such as too little lockable memory or too few descriptors.
    #[error("cannot set up io_uring: {step}: {source}")]
    Other {
        /// What was being done.
        step: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
}

impl SetupError {
    /// Whether it is `io_uring` that this system does not let us have.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, SetupError::Other { .. })
    }
}

/// A ring for one thread: completions are handled when that thread asks for them, never by interrupting it.
pub(crate) fn make_ring(entries: u32) -> Result<IoUring, SetupError> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(entries * 8)
        .build(entries)
        .map_err(|error| explain(error, std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()))
}

fn explain(source: io::Error, sysctl: Option<String>) -> SetupError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => match sysctl.as_deref().map(str::trim) {
            Some(value) if value != "0" => SetupError::DisabledBySysctl { value: value.to_owned() },
            _ => SetupError::ForbiddenBySeccomp { source },
        },
        // Filters answer ENOSYS too, so that programs fall back; a kernel with the sysctl has the call.
        Some(libc::ENOSYS) if sysctl.is_some() => SetupError::ForbiddenBySeccomp { source },
        Some(libc::ENOSYS | libc::EINVAL) => SetupError::TooOld { source },
        _ => SetupError::Other { step: "io_uring_setup", source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(errno: i32, sysctl: Option<&str>) -> String {
        explain(io::Error::from_raw_os_error(errno), sysctl.map(str::to_owned)).to_string()
    }

    #[test]
    fn a_refusal_names_who_refuses_and_how_to_allow_it() {
        assert!(explained(libc::EPERM, Some("2\n")).contains("sysctl -w kernel.io_uring_disabled=0"));
        assert!(explained(libc::EPERM, Some("0\n")).contains("seccomp"));
        assert!(explained(libc::ENOSYS, Some("0\n")).contains("seccomp"));
        assert!(explained(libc::ENOSYS, None).contains("Linux 6.1"));
        assert!(explained(libc::ENOMEM, Some("0\n")).contains("io_uring_setup"));
    }
}
