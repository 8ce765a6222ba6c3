//! What a program, its files and its environment say of a cluster: the names and files of Ceph's, as far as they mean something here.
//!
//! | option | what it is here |
//! |---|---|
//! | `millpond_dir` | the directory of a cluster that `millpond up` runs on this machine |
//! | `key`, `keyfile`, `keyring` | a client's token (`millpond auth token`), in base64: it holds the cluster's nodes and a key |
//! | `client_mount_timeout` | how long connecting may take, in seconds |
//! | `rados_mon_op_timeout` | how long what is asked of the cluster may take, in seconds; 0: as long as it takes |
//! | `rados_osd_op_timeout` | how long an operation on data may take, in seconds; 0: as long as it takes |
//!
//! Others that programs set are kept and mean nothing: there is no cache (`rbd_cache`), monitors are no place to go to (`mon_host`).

use crate::errno::{Answer, Errno};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options that are known, and what they are where nobody says anything.
const OPTIONS: [(&str, &str); 36] = [
    ("admin_socket", ""),
    ("auth_client_required", "cephx"),
    ("auth_cluster_required", "cephx"),
    ("auth_service_required", "cephx"),
    ("auth_supported", ""),
    ("client_mount_timeout", "300"),
    ("debug_rados", "0/5"),
    ("debug_rbd", "0/5"),
    ("fsid", ""),
    ("key", ""),
    ("keyfile", ""),
    ("keyring", ""),
    ("log_file", ""),
    ("log_max_new", "1000"),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "true"),
    ("millpond_dir", ""),
    ("mon_host", ""),
    ("mon_initial_members", ""),
    ("rados_mon_op_timeout", "0"),
    ("rados_osd_op_timeout", "0"),
    ("rbd_cache", "false"),
    ("rbd_cache_max_dirty", "0"),
    ("rbd_cache_size", "0"),
    ("rbd_cache_writethrough_until_flush", "true"),
    ("rbd_clone_copy_on_read", "false"),
    ("rbd_default_clone_format", "2"),
    ("rbd_default_data_pool", ""),
    ("rbd_default_features", "61"),
    ("rbd_default_format", "2"),
    ("rbd_default_order", "22"),
    ("rbd_default_pool", "rbd"),
    ("rbd_move_to_trash_on_remove", "false"),
    ("rbd_request_timed_out_seconds", "30"),
    ("rbd_skip_partial_discard", "false"),
    ("rbd_validate_names", "true"),
];

/// The environment's name of a directory of Millpond's.
const DIRECTORY_VARIABLE: &str = "MILLPOND_DIR";
/// A file is shorter, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The cluster's name: what its file is called.
    cluster: String,
    /// Who connects: `client.admin`, for example.
    user: String,
    said: BTreeMap<String, String>,
}

/// What other options of Ceph's begin with, of which this library knows nothing but that they may be set.
const OTHERS: [&str; 9] =
    ["auth_", "client_", "debug_", "log_", "mon_", "ms_", "objecter_", "rados_", "rbd_"];

/// The name of an option as it is kept, and what it is where nobody says anything.
fn known(name: &str) -> Option<(String, &'static str)> {
    let spelt = |c: char| if c == ' ' || c == '-' { '_' } else { c.to_ascii_lowercase() };
    let name: String = name.trim().chars().map(spelt).collect();
    let default = OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, default)| *default);
    let is_other = OTHERS.iter().any(|begin| name.starts_with(begin));
    default.or_else(|| is_other.then_some("")).map(|default| (name, default))
}

/// The options that images have, and what they are where nobody says anything.
pub fn options_of_images() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPTIONS.into_iter().filter(|(name, _)| name.starts_with("rbd_"))
}

impl Configuration {
    /// What is so if nobody says anything.
    #[must_use]
    pub fn new(cluster: &str, user: &str) -> Configuration {
        Configuration { cluster: cluster.to_owned(), user: user.to_owned(), said: BTreeMap::new() }
    }

    /// The value of an option.
    ///
    /// # Errors
    /// `ENOENT`: none is called so.
    pub fn get(&self, name: &str) -> Answer<&str> {
        let (name, default) = known(name).ok_or(Errno(libc::ENOENT))?;
        Ok(self.said.get(&name).map_or(default, String::as_str))
    }

    /// Sets one.
    ///
    /// # Errors
    /// `ENOENT`: none is called so. `EINVAL`: it cannot be that.
    pub fn set(&mut self, name: &str, value: &str) -> Answer<()> {
        let (name, _) = known(name).ok_or(Errno(libc::ENOENT))?;
        if name.ends_with("_timeout")
            && value.trim().parse::<f64>().map_or(true, |seconds| !(0.0..1e9).contains(&seconds))
        {
            return Err(Errno(libc::EINVAL));
        }
        self.said.insert(name, value.trim().to_owned());
        Ok(())
    }

    /// A time limit; none where it is 0.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<Duration> {
        let seconds = self.get(name).ok()?.parse::<f64>().ok()?;
        Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero())
    }

    /// Takes what a file says, or the first that is there where C's libraries look for one.
    ///
    /// # Errors
    /// `ENOENT`: there is none. One that nobody named is not missed where the environment names a directory.
    pub fn read_file(&mut self, named: Option<&str>) -> Answer<()> {
        if let Some(path) = named {
            let text = read(Path::new(path))?;
            self.take(&text);
            return Ok(());
        }
        let file = format!("{}.conf", self.cluster);
        let variable = std::env::var_os("CEPH_CONF").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".ceph").join(&file));
        let others = [Some(Path::new("/etc/ceph").join(&file)), home, Some(PathBuf::from(&file))];
        for path in std::iter::once(variable).chain(others).flatten() {
            match read(&path) {
                Ok(text) => {
                    self.take(&text);
                    return Ok(());
                }
                Err(Errno(libc::ENOENT)) => {}
                Err(error) => return Err(error),
            }
        }
        if std::env::var_os(DIRECTORY_VARIABLE).is_some() { Ok(()) } else { Err(Errno(libc::ENOENT)) }
    }

    /// Takes what is said in the sections that are for this user, the narrower ones before the wider.
    fn take(&mut self, text: &str) {
        let sections = ["global".to_owned(), "client".to_owned(), self.user.clone()];
        for section in sections {
            for (name, value) in entries(text, &section) {
                // What is not known here is for others.
                let _ = self.set(name, value);
            }
        }
    }

    /// Takes what a list of arguments says, as `--name value` or `--name=value`; the others, in order.
    ///
    /// # Errors
    /// `EINVAL`: an option cannot be that.
    pub fn take_arguments<'a>(&mut self, arguments: &[&'a str]) -> Answer<Vec<&'a str>> {
        let (mut left, mut at) = (Vec::new(), 0);
        while let Some(argument) = arguments.get(at) {
            at += 1;
            let Some(option) = argument.strip_prefix("--") else {
                left.push(*argument);
                continue;
            };
            match option.split_once('=') {
                Some((name, value)) if known(name).is_some() => self.set(name, value)?,
                None if known(option).is_some() && at < arguments.len() => {
                    self.set(option, arguments[at])?;
                    at += 1;
                }
                _ => left.push(*argument),
            }
        }
        Ok(left)
    }

    /// Which directory of a cluster on this machine is meant, if one is.
    #[must_use]
    pub fn directory(&self) -> Option<PathBuf> {
        let said = self.said.get("millpond_dir").filter(|path| !path.is_empty()).map(PathBuf::from);
        said.or_else(|| std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from))
    }

    /// The key that is said, or that lies in a file.
    ///
    /// # Errors
    /// A file that is named cannot be read, or `ENOENT`: it has none for this user.
    pub fn key(&self) -> Answer<Option<String>> {
        let said = |name| self.said.get(name).filter(|value| !value.is_empty());
        if let Some(key) = said("key") {
            return Ok(Some(key.clone()));
        }
        if let Some(path) = said("keyfile") {
            return Ok(Some(read(Path::new(path))?.trim().to_owned()));
        }
        let Some(paths) = said("keyring") else { return Ok(None) };
        for path in paths.split(',') {
            let path = path.trim().replace("$cluster", &self.cluster).replace("$name", &self.user);
            if let Ok(text) = read(Path::new(&path)) {
                let key = entries(&text, &self.user).find(|(name, _)| *name == "key");
                if let Some((_, key)) = key {
                    return Ok(Some(key.to_owned()));
                }
            }
        }
        Err(Errno(libc::ENOENT))
    }
}

fn read(path: &Path) -> Answer<String> {
    let number = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    if std::fs::metadata(path).map_err(number)?.len() > FILE_BYTES_MAX {
        return Err(Errno(libc::EFBIG));
    }
    std::fs::read_to_string(path).map_err(number)
}

/// What a section of a file says, in order.
fn entries<'a>(text: &'a str, section: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut is_in = false;
    text.lines().filter_map(move |line| {
        // A mark of comments may stand behind what is said.
        let line = line.split(['#', ';']).next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_in = name.trim() == section;
            return None;
        }
        let (name, value) = line.split_once('=').filter(|_| is_in)?;
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|mark| value.strip_prefix(*mark)?.strip_suffix(*mark));
        Some((name.trim(), quoted.unwrap_or(value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_spellings() {
        let mut said = Configuration::new("ceph", "client.guest");
        said.take(
            "key = none's\n[global]\nMillpond Dir = /a # here\nclient-mount-timeout = 5\nunheard of = 1\n[client]\nkey = 'all'\n\
             [client.guest]\n key=\"mine\" ; it is\n[client.other]\nkey = other\n",
        );
        assert_eq!(said.directory(), Some(PathBuf::from("/a")));
        assert_eq!(said.limit("client_mount_timeout"), Some(Duration::from_secs(5)));
        assert_eq!(said.key(), Ok(Some("mine".to_owned())));
        assert_eq!(said.get("unheard_of"), Err(Errno(libc::ENOENT)));
        assert_eq!(said.limit("rados_osd_op_timeout"), None);
        for wrong in ["soon", "-1", "nan", "1e300"] {
            assert_eq!(said.set("rados_mon_op_timeout", wrong), Err(Errno(libc::EINVAL)), "{wrong}");
        }
        let left = said.take_arguments(&["--key=k", "-x", "--rbd-cache", "true", "--unheard", "y"]);
        assert_eq!(left, Ok(vec!["-x", "--unheard", "y"]));
        assert_eq!((said.key().unwrap().as_deref(), said.get("rbd_cache")), (Some("k"), Ok("true")));
    }

    #[test]
    fn a_keyring_is_searched_for_the_user_s_key() {
        let directory = tempfile::tempdir().unwrap();
        let ring = directory.path().join("ceph.client.a.keyring");
        std::fs::write(&ring, "[client.a]\n\tkey = mine==\n[client.b]\n\tkey = other\n").unwrap();
        let mut said = Configuration::new("ceph", "client.a");
        said.set("keyring", &format!("{}/$cluster.$name.keyring", directory.path().display())).unwrap();
        assert_eq!(said.key(), Ok(Some("mine==".to_owned())));
        let mut other = Configuration::new("ceph", "client.c");
        other.set("keyring", ring.to_str().unwrap()).unwrap();
        assert_eq!(other.key(), Err(Errno(libc::ENOENT)));
        assert_eq!(Configuration::new("ceph", "client.a").key(), Ok(None));
        assert_eq!(other.read_file(Some("/nowhere")), Err(Errno(libc::ENOENT)));
    }
}
