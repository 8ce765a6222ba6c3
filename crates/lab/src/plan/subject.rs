//! What is measured.

use super::PlanFileError;
use crate::engine::plan::TargetName;
use base::units::ByteSize;
use serde::Deserialize;
use std::path::PathBuf;

/// What stands among programs for the user that may do anything.
const ROOT: &str = "root";

/// What makes the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Millpond's own.
    #[default]
    Millpond,
    /// The program `fio`, as a witness, or for what only it reaches.
    Fio,
}

/// What is measured. Exactly one of `raw`, `volume`, `nbd`, `vhost_user`, `directory`, `rbd` and `system` says where it is.
///
/// `{client}` in these is each client's number, from 1: so each has a volume of its own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// What it is called.
    pub name: String,
    /// A block device, or a file.
    pub raw: Option<String>,
    /// A volume of a Millpond cluster.
    pub volume: Option<String>,
    /// An NBD export, by URI.
    pub nbd: Option<String>,
    /// The disk of a vhost-user-blk back-end, by its socket; each serves one client.
    pub vhost_user: Option<String>,
    /// A directory, in which each client has a file of `size`.
    pub directory: Option<String>,
    /// An image of a Ceph cluster, as `pool/image`; by fio.
    pub rbd: Option<String>,
    /// Whatever only commands reach, in words: for jobs that are commands.
    pub system: Option<String>,
    /// That cluster's configuration.
    pub ceph_conf: Option<PathBuf>,
    /// What makes the load.
    #[serde(default)]
    pub engine: Engine,
    /// The directory of the cluster that a volume is of, or that serves an export; the command's own if absent.
    pub dir: Option<PathBuf>,
    /// How much of it is used, from its beginning; all if absent.
    #[serde(default, deserialize_with = "optional_size")]
    pub size: Option<ByteSize>,
    /// Whether what is used is written once before the first round, so that data is read and not holes.
    pub prefill: Option<bool>,
    /// Whether I/O goes past the page cache, of a device, a file or files of a directory. `direct` to fio.
    pub direct: Option<bool>,
    /// So many bytes are written over, in random blocks of 4 KiB, once it is filled: what has been in use is slower than what is new.
    #[serde(default, deserialize_with = "optional_size")]
    pub age: Option<ByteSize>,
    /// Whether what it holds may go; of a directory, files of these names.
    #[serde(default)]
    pub overwrite: bool,
    /// What a shell runs before anything else. What it starts is to be in the background when it ends.
    pub start: Option<String>,
    /// What a shell runs in the end, whatever came of it.
    pub stop: Option<String>,
    /// The subject that it is compared with; the first if absent. One that is compared with itself is with none.
    pub by: Option<String>,
    /// What a shell runs before each of its samples.
    pub before: Option<String>,
    /// Programs without which it is left out, which the report says; [`ROOT`] stands for the user.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Which of the plan's agents make its load; those that no subject names if absent.
    pub agents: Option<Vec<String>>,
    /// The names of the programs whose CPU time is that of this subject's nodes; those of its cluster if absent.
    #[serde(default)]
    pub watch: Vec<String>,
}

/// Where a subject is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A device or file.
    Raw(&'a str),
    /// A volume.
    Volume(&'a str),
    /// An export.
    Nbd(&'a str),
    /// The disk of a back-end.
    VhostUser(&'a str),
    /// A directory.
    Directory(&'a str),
    /// An image.
    Rbd(&'a str),
    /// What only commands reach.
    System(&'a str),
}

impl Subject {
    /// Where it is. `None` where nothing or more than one thing says so, which no checked plan has.
    #[must_use]
    pub fn place(&self) -> Option<Place<'_>> {
        let places = [
            self.raw.as_deref().map(Place::Raw),
            self.volume.as_deref().map(Place::Volume),
            self.nbd.as_deref().map(Place::Nbd),
            self.vhost_user.as_deref().map(Place::VhostUser),
            self.directory.as_deref().map(Place::Directory),
            self.rbd.as_deref().map(Place::Rbd),
            self.system.as_deref().map(Place::System),
        ];
        let mut places = places.into_iter().flatten();
        places.next().filter(|_| places.next().is_none())
    }

    /// Whether it is written once before it is measured.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        self.prefill.unwrap_or(self.system.is_none())
    }

    /// Whether I/O goes past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.unwrap_or(true)
    }

    /// The first of the programs that it needs and this host does not have, or [`ROOT`] if it needs that user.
    #[must_use]
    pub fn missing(&self) -> Option<&str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Where Debian keeps what only root uses, which is not in everybody's path.
        let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        let places: Vec<PathBuf> = std::env::split_paths(&path).chain(more).collect();
        let is_there = |program: &str| match program {
            ROOT => nix::unistd::Uid::effective().is_root(),
            program => places.iter().any(|place| place.join(program).is_file()),
        };
        self.needs.iter().map(String::as_str).find(|program| !is_there(program))
    }

    /// Whether each client has something of its own.
    #[must_use]
    pub fn is_by_client(&self) -> bool {
        let names = [&self.raw, &self.volume, &self.nbd, &self.vhost_user, &self.rbd];
        self.directory.is_some() || names.into_iter().flatten().any(|name| name.contains("{client}"))
    }

    /// The target of a client, by number from 1; `None` of what only fio reaches.
    #[must_use]
    pub fn target(&self, client: u32) -> Option<TargetName> {
        let own = |name: &str| name.replace("{client}", &client.to_string());
        Some(match self.place()? {
            Place::Raw(path) => TargetName::Raw(own(path).into()),
            Place::Volume(name) => TargetName::Volume(own(name)),
            Place::Nbd(uri) => TargetName::Nbd(own(uri)),
            Place::VhostUser(path) => TargetName::VhostUser(own(path).into()),
            Place::Directory(path) => TargetName::Raw(PathBuf::from(path).join(format!("client-{client}"))),
            Place::Rbd(_) | Place::System(_) => return None,
        })
    }

    /// What it is, for a reader.
    #[must_use]
    pub fn described(&self) -> String {
        let what = match self.place() {
            None => "nothing".to_owned(),
            Some(Place::Raw(path)) => format!("raw:{path}"),
            Some(Place::Volume(name)) => format!("volume:{name}"),
            Some(Place::Nbd(uri)) => format!("nbd:{uri}"),
            Some(Place::VhostUser(path)) => format!("vhost-user:{path}"),
            Some(Place::Directory(path)) => format!("directory:{path}"),
            Some(Place::Rbd(image)) => format!("rbd:{image}"),
            Some(Place::System(what)) => what.to_owned(),
        };
        let cached = if self.is_direct() { "" } else { ", through the page cache" };
        let aged = self.age.map_or(String::new(), |age| format!(", aged by {age}"));
        let by = if self.engine == Engine::Fio { ", by fio" } else { "" };
        format!("{what}{cached}{aged}{by}")
    }

    pub(super) fn check(&self) -> Result<(), PlanFileError> {
        let wrong = |text: &str| Err(PlanFileError::Sense(format!("subject {:?}: {text}", self.name)));
        match self.place() {
            None => {
                return wrong("give exactly one of raw, volume, nbd, vhost_user, directory, rbd and system");
            }
            Some(Place::Rbd(image)) => {
                if self.engine != Engine::Fio {
                    return wrong("an image is reached by fio; say engine = \"fio\"");
                }
                if image.split_once('/').is_none_or(|(pool, image)| pool.is_empty() || image.is_empty()) {
                    return wrong("write an image as \"pool/image\"");
                }
            }
            Some(Place::System(_))
                if self.is_filled() || self.engine == Engine::Fio || self.size.is_some() =>
            {
                return wrong("a system is for jobs that are commands; leave out prefill, size and engine");
            }
            Some(Place::Volume(_)) if self.engine == Engine::Fio => {
                return wrong("fio reaches a volume by its NBD export; give nbd = \"nbd://…\"");
            }
            Some(Place::Directory(_)) if self.size.is_none() => {
                return wrong("say how large the files in the directory are: size = \"1GiB\"");
            }
            Some(Place::Nbd(uri)) if uri.parse::<doors::nbd::NbdUri>().is_err() => {
                return wrong("nbd is no URI; write nbd://host/export or nbd+unix:///export?socket=/path");
            }
            Some(_) => {}
        }
        let is_file = matches!(self.place(), Some(Place::Raw(_) | Place::Directory(_)));
        if self.direct.is_some() && !is_file {
            return wrong("direct is for raw and directory");
        }
        if self.age.is_some() && (!self.is_filled() || self.target(1).is_none()) {
            return wrong("what is aged is filled first, and not by fio alone");
        }
        if self.ceph_conf.is_some() && self.rbd.is_none() {
            return wrong("ceph_conf is for rbd");
        }
        Ok(())
    }
}

fn optional_size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    let super::Many(mut values) = super::Many::<ByteSize>::deserialize(deserializer)?;
    match (values.pop(), values.is_empty()) {
        (Some(size), true) => Ok(Some(size)),
        _ => Err(serde::de::Error::custom("this key has one value")),
    }
}
