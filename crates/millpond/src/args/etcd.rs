//! What etcd wants to see, as flags.

use crate::host::settings::EtcdPaths;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;

/// What etcd wants to see.
#[derive(Args, Clone, Debug)]
pub struct EtcdArguments {
    /// Certificates of the authorities whose word on etcd's certificate counts
    #[arg(long, value_name = "PATH")]
    pub etcd_ca: Option<PathBuf>,

    /// The certificate to show etcd
    #[arg(long, value_name = "PATH", requires = "etcd_key")]
    pub etcd_certificate: Option<PathBuf>,

    /// The secret key of that certificate
    #[arg(long, value_name = "PATH", requires = "etcd_certificate")]
    pub etcd_key: Option<PathBuf>,

    /// The user of etcd, where it wants one
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,

    /// The file that holds that user's password
    #[arg(long, value_name = "PATH", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

impl EtcdArguments {
    /// The files as they are found from anywhere.
    pub fn paths(&self) -> anyhow::Result<EtcdPaths> {
        let absolute = |path: &Option<PathBuf>| {
            let Some(path) = path else { return Ok(None) };
            let absolute = std::path::absolute(path);
            absolute.map(Some).with_context(|| format!("cannot make sense of the path {path:?}"))
        };
        Ok(EtcdPaths {
            ca: absolute(&self.etcd_ca)?,
            certificate: absolute(&self.etcd_certificate)?,
            key: absolute(&self.etcd_key)?,
            user: self.etcd_user.clone(),
            password_file: absolute(&self.etcd_password_file)?,
        })
    }
}
