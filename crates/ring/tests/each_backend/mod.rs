//! Tests for whatever may carry a reactor.

/// Tests of what a reactor does whatever carries it.
macro_rules! on_each_backend {
    ($($name:ident)*) => {
        mod by_io_uring {
            $(#[test] fn $name() { super::$name(ring::Backend::Ring); })*
        }
        mod by_epoll {
            $(#[test] fn $name() { super::$name(ring::Backend::Poll); })*
        }
    };
}
