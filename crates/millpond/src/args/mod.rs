//! Flags that several commands share.

pub mod etcd;
