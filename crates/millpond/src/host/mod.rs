//! A cluster on this machine: where it is, what it was told, its drives, and the processes that run it.

pub mod access;
pub mod addresses;
pub mod configuration;
pub mod directory;
pub mod drive_files;
pub mod home;
pub mod inquiry;
pub mod joined;
pub mod local_cluster;
pub mod network_namespaces;
pub mod new_files;
pub mod readiness;
pub mod scrape_targets;
pub mod settings;
pub mod stop;
pub mod supervisor;
pub mod token;
