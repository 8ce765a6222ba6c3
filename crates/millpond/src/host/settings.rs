//! `DIR/millpond.toml`: what this machine has to know to take part in a cluster whose registry is elsewhere. Every key has
//! a default and a line of explanation; the environment goes before the file. `millpond config show` prints all of it.

use crate::host::directory::Directory;
use anyhow::{Context, bail};
use auth::{Identity, SecretKey};
use base::{ClusterId, NodeId};
use node::Location;
use registry::Endpoints;
use registry_etcd::{EtcdOptions, EtcdTls, EtcdUser};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml_edit::{DocumentMut, Item, Table, Value, value};

/// Where nodes serve clients the registry, unless told otherwise.
const CLIENT_PORT: u16 = 6480;
/// The key of a machine that is a client, in its directory.
pub const CLIENT_KEY: &str = "client.key";
/// What the environment's names begin with: `node.listen` is `MILLPOND_NODE_LISTEN`.
const ENVIRONMENT: &str = "MILLPOND_";

/// A key of the file.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name, with a dot where it is in a table.
    pub name: &'static str,
    /// What holds where nothing is said, for people.
    pub default: &'static str,
    /// What it is for.
    pub explanation: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Truth,
    Paths,
}

const REGISTRY: Key = Key {
    name: "registry",
    default: "that of `millpond up` in this directory",
    explanation: "where the cluster's registry is: a URL of etcd's, or of nodes that serve it to clients",
    kind: Kind::Text,
};
const CLUSTER: Key = Key {
    name: "cluster",
    default: "whichever the registry has",
    explanation: "the cluster's id: another one is refused",
    kind: Kind::Text,
};
const ETCD_CA: Key = Key {
    name: "etcd.ca",
    default: "none",
    explanation: "certificates of the authorities whose word on etcd's certificate counts (PEM)",
    kind: Kind::Text,
};
const ETCD_CERTIFICATE: Key = Key {
    name: "etcd.certificate",
    default: "none",
    explanation: "the certificate to show etcd (PEM); its common name is the user of etcd",
    kind: Kind::Text,
};
const ETCD_KEY: Key = Key {
    name: "etcd.key",
    default: "none",
    explanation: "the secret key of that certificate (PEM)",
    kind: Kind::Text,
};
const ETCD_USER: Key =
    Key { name: "etcd.user", default: "none", explanation: "the user of etcd", kind: Kind::Text };
const ETCD_PASSWORD_FILE: Key = Key {
    name: "etcd.password_file",
    default: "none",
    explanation: "the file that holds that user's password",
    kind: Kind::Text,
};
const NODE_NUMBER: Key = Key {
    name: "node.number",
    default: "none: this machine is no node",
    explanation: "which node this machine is; `millpond node join` chooses it",
    kind: Kind::Number,
};
const NODE_LISTEN: Key = Key {
    name: "node.listen",
    default: "127.0.0.1",
    explanation: "the address of this machine that the others reach its OSDs at",
    kind: Kind::Text,
};
const NODE_CLIENT_PORT: Key = Key {
    name: "node.client_port",
    default: "6480",
    explanation: "the port of that address on which clients are served what they may have of the registry; 0: none",
    kind: Kind::Number,
};
const NODE_DEVICES: Key = Key {
    name: "node.devices",
    default: "[]",
    explanation: "the drives of its OSDs; a running node follows what is added",
    kind: Kind::Paths,
};
const NODE_VOLATILE_CACHE: Key = Key {
    name: "node.volatile_cache",
    default: "what the kernel says",
    explanation: "whether these drives lose what they did not flush with power; false only with power-loss protection",
    kind: Kind::Truth,
};
const NODE_SPIN_US: Key = Key {
    name: "node.spin_us",
    default: "0",
    explanation: "the longest an OSD polls before it sleeps, in microseconds",
    kind: Kind::Number,
};

const UP: Key = Key {
    name: "up",
    default: "where no registry is named",
    explanation: "whether `millpond up` runs this machine's nodes; `millpond registry migrate` says so",
    kind: Kind::Truth,
};

/// All keys, in the order in which they are shown.
pub const KEYS: [Key; 14] = [
    REGISTRY,
    CLUSTER,
    UP,
    ETCD_CA,
    ETCD_CERTIFICATE,
    ETCD_KEY,
    ETCD_USER,
    ETCD_PASSWORD_FILE,
    NODE_NUMBER,
    NODE_LISTEN,
    NODE_CLIENT_PORT,
    NODE_DEVICES,
    NODE_VOLATILE_CACHE,
    NODE_SPIN_US,
];

impl Key {
    /// Its name in the environment.
    pub fn environment(&self) -> String {
        format!("{ENVIRONMENT}{}", self.name.replace('.', "_").to_uppercase())
    }

    /// A text of the environment as a value of this key.
    fn read(&self, text: &str) -> Result<Value, String> {
        let wrong = |what: &str| format!("{} is {text:?}, which is no {what}", self.environment());
        match self.kind {
            Kind::Text => Ok(text.into()),
            Kind::Number => text.parse::<i64>().map(Value::from).map_err(|_| wrong("number")),
            Kind::Truth => text.parse::<bool>().map(Value::from).map_err(|_| wrong("true or false")),
            Kind::Paths => Ok(Value::from_iter(text.split(':').filter(|path| !path.is_empty()))),
        }
    }

    /// Whether a value of the file is one of this key's.
    fn fits(&self, value: &Value) -> bool {
        match self.kind {
            Kind::Text => value.is_str(),
            Kind::Number => value.as_integer().is_some_and(|number| number >= 0),
            Kind::Truth => value.is_bool(),
            Kind::Paths => value.as_array().is_some_and(|array| array.iter().all(Value::is_str)),
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nothing was said.
    Default,
    /// The file.
    File,
    /// A variable of the environment.
    Environment,
}

/// A key with its value: `config show --json` is a list of these.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The key.
    pub key: &'static str,
    /// Its value, as in the file; the default in words.
    pub value: String,
    /// Where that comes from.
    pub origin: Origin,
    /// What it is for.
    pub explanation: &'static str,
}

/// What etcd wants to see, as texts: certificates and keys in PEM.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EtcdFiles {
    /// Certificates of authorities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The certificate to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Its secret key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// The files that hold these, and the user.
#[derive(Clone, Debug, Default)]
pub struct EtcdPaths {
    /// Certificates of authorities.
    pub ca: Option<PathBuf>,
    /// The certificate to show.
    pub certificate: Option<PathBuf>,
    /// Its secret key.
    pub key: Option<PathBuf>,
    /// The user.
    pub user: Option<String>,
    /// Its password.
    pub password_file: Option<PathBuf>,
}

/// What the file and the environment say.
#[derive(Debug)]
pub struct Settings {
    path: PathBuf,
    /// What file paths in it are relative to.
    directory: PathBuf,
    document: DocumentMut,
    environment: Vec<(&'static str, Value)>,
}

impl Settings {
    /// Those of a directory. A file that is not there says nothing.
    pub fn load(directory: &Directory) -> anyhow::Result<Settings> {
        Settings::load_with(directory, |name| std::env::var(name).ok())
    }

    fn load_with(
        directory: &Directory,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Settings> {
        let path = directory.settings_file();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let shown = path.display();
        let document: DocumentMut =
            text.parse().with_context(|| format!("{shown} is not TOML; mend it, or restore it"))?;
        check(&document).map_err(|reason| anyhow::anyhow!("{shown}: {reason}"))?;
        let mut environment = Vec::new();
        for key in &KEYS {
            if let Some(text) = variable(&key.environment()) {
                environment.push((key.name, key.read(&text).map_err(anyhow::Error::msg)?));
            }
        }
        Ok(Settings { path, directory: directory.path().to_owned(), document, environment })
    }

    /// Those of a directory of which they must be.
    pub fn require(directory: &Directory) -> anyhow::Result<Settings> {
        if !Settings::are_there(directory) {
            bail!(
                "{} is of no cluster of several hosts; make one with `millpond cluster init`, join one with `millpond node \
                 join`, or name another directory with --dir or MILLPOND_DIR",
                directory.given()
            );
        }
        Settings::load(directory)
    }

    /// Whether they say that this machine takes part in a cluster whose registry is elsewhere. True of those that cannot be
    /// read: whoever reads them next is told why.
    pub fn are_there(directory: &Directory) -> bool {
        Settings::load(directory).map_or(true, |settings| settings.registry_url().is_some())
    }

    fn get(&self, key: &Key) -> Option<&Value> {
        let of_environment =
            self.environment.iter().find(|(name, _)| *name == key.name).map(|(_, value)| value);
        of_environment.or_else(|| find(&self.document, key.name))
    }

    fn text(&self, key: &Key) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// Where a file that the settings name is.
    fn path_of(&self, key: &Key) -> Option<PathBuf> {
        self.text(key).map(|path| self.directory.join(path))
    }

    /// The content of a file that a key names.
    fn file(&self, key: &Key) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(path) = self.path_of(key) else { return Ok(None) };
        let read = std::fs::read(&path);
        read.map(Some).with_context(|| format!("cannot read {}, which {} names", path.display(), key.name))
    }

    /// The registry's URL, if it is elsewhere.
    pub fn registry_url(&self) -> Option<&str> {
        self.text(&REGISTRY)
    }

    /// Whether this machine is a client, which nodes serve the registry.
    pub fn are_of_client(&self) -> bool {
        self.registry_url().is_some_and(Endpoints::is_url)
    }

    /// What etcd wants to see, as it stands in the files.
    pub fn etcd_files(&self) -> anyhow::Result<EtcdFiles> {
        let text = |key| -> anyhow::Result<Option<String>> {
            Ok(self.file(key)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        Ok(EtcdFiles {
            ca: text(&ETCD_CA)?,
            certificate: text(&ETCD_CERTIFICATE)?,
            key: text(&ETCD_KEY)?,
            user: self.text(&ETCD_USER).map(str::to_owned),
            password: text(&ETCD_PASSWORD_FILE)?,
        })
    }

    /// Whether this machine has nodes that `millpond up` runs in a cluster whose registry is elsewhere.
    pub fn are_of_up(&self) -> bool {
        self.registry_url().is_some() && self.get(&UP).and_then(Value::as_bool) == Some(true)
    }

    /// Says from now on, in the file, that `millpond up` runs this machine's nodes, where the others reach them.
    pub fn set_up(&mut self, listen: Option<IpAddr>) {
        self.set(UP.name, true);
        if let Some(listen) = listen {
            self.set(NODE_LISTEN.name, listen.to_string());
        }
    }

    /// Forgets, in the file, the registry and all that belongs to it.
    pub fn forget_registry(&mut self) {
        for key in [
            REGISTRY,
            CLUSTER,
            UP,
            ETCD_CA,
            ETCD_CERTIFICATE,
            ETCD_KEY,
            ETCD_USER,
            ETCD_PASSWORD_FILE,
            NODE_LISTEN,
        ] {
            self.unset(key.name);
        }
    }

    /// Which node this machine is, where it must be one.
    pub fn require_node(&self, directory: &Directory) -> anyhow::Result<NodeId> {
        if self.are_of_up() {
            bail!(
                "the nodes of {0} are run by `millpond up --dir {0}`, and ended by `millpond down --dir {0}`",
                directory.given()
            );
        }
        self.node().with_context(|| {
            format!(
                "{} is of no node of its cluster; `millpond node join` makes this host one",
                directory.given()
            )
        })
    }

    /// Names a registry from now on, in the file.
    pub fn set_registry(&mut self, url: &str, cluster: ClusterId) {
        self.set(REGISTRY.name, url);
        self.set(CLUSTER.name, cluster.to_string());
    }

    /// Names what etcd wants to see from now on, in the file.
    pub fn set_etcd(&mut self, paths: &EtcdPaths) {
        let named = [
            (ETCD_CA, &paths.ca),
            (ETCD_CERTIFICATE, &paths.certificate),
            (ETCD_KEY, &paths.key),
            (ETCD_PASSWORD_FILE, &paths.password_file),
        ];
        for (key, path) in named {
            if let Some(path) = path {
                self.set(key.name, path.display().to_string());
            }
        }
        if let Some(user) = &paths.user {
            self.set(ETCD_USER.name, user.as_str());
        }
    }

    /// Takes over what a client's token says: into the file, and its key into one beside it that only its owner may read.
    pub fn take_client(&mut self, url: &str, cluster: ClusterId, key: &str) -> anyhow::Result<()> {
        self.set_registry(url, cluster);
        write_privately(&self.directory.join(CLIENT_KEY), key.as_bytes())
    }

    /// Takes over what a token says: into the file, and into files beside it that only their owner may read.
    pub fn take(&mut self, url: &str, cluster: ClusterId, etcd: &EtcdFiles) -> anyhow::Result<()> {
        self.set_registry(url, cluster);
        let write = |name: &str, text: &Option<String>| -> anyhow::Result<Option<PathBuf>> {
            let Some(text) = text else { return Ok(None) };
            let path = self.directory.join(name);
            write_privately(&path, text.as_bytes())?;
            Ok(Some(name.into()))
        };
        let paths = EtcdPaths {
            ca: write("etcd-ca.pem", &etcd.ca)?,
            certificate: write("etcd.pem", &etcd.certificate)?,
            key: write("etcd.key", &etcd.key)?,
            user: etcd.user.clone(),
            password_file: write("etcd.password", &etcd.password)?,
        };
        self.set_etcd(&paths);
        Ok(())
    }

    /// Where the registry is, if it is elsewhere.
    pub fn registry(&self) -> anyhow::Result<Option<Location>> {
        let Some(url) = self.text(&REGISTRY) else { return Ok(None) };
        if Endpoints::is_url(url) {
            let endpoints = url.parse::<Endpoints>().map_err(anyhow::Error::msg);
            let endpoints = endpoints.with_context(|| format!("{}: registry", self.path.display()))?;
            let key = SecretKey::load(&self.directory.join(CLIENT_KEY))
                .context("no key to come to the cluster with; `millpond client join` puts one there")?;
            return Ok(Some(Location::Nodes { endpoints, identity: Identity::new(&key) }));
        }
        let options: EtcdOptions =
            url.parse().with_context(|| format!("{}: registry", self.path.display()))?;
        let mut options = if url.starts_with("etcds://") {
            let identity = match (self.path_of(&ETCD_CERTIFICATE), self.path_of(&ETCD_KEY)) {
                (None, None) => None,
                (Some(certificate), Some(key)) => Some((certificate, key)),
                _ => bail!("{}: etcd.certificate and etcd.key go together; give both", self.path.display()),
            };
            options.with_tls(EtcdTls { authorities: self.path_of(&ETCD_CA), identity })
        } else {
            options
        };
        if let Some(name) = self.text(&ETCD_USER) {
            let password = self.file(&ETCD_PASSWORD_FILE)?;
            let Some(password) = password else {
                bail!("{}: etcd.user goes with etcd.password_file; give both", self.path.display());
            };
            let password = String::from_utf8_lossy(&password).trim_end().to_owned();
            options = options.with_user(EtcdUser { name: name.to_owned(), password });
        }
        Ok(Some(Location::Etcd(options)))
    }

    /// Where the registry is: elsewhere, or with the cluster that is up in the directory of these settings.
    pub fn registry_of(&self, directory: &Directory) -> anyhow::Result<Location> {
        Ok(self.registry()?.unwrap_or_else(|| Location::Socket(directory.registry_socket())))
    }

    /// The cluster that the registry must be of.
    pub fn cluster(&self) -> anyhow::Result<Option<ClusterId>> {
        let parse = |text: &str| {
            let uuid = uuid::Uuid::parse_str(text);
            uuid.map(ClusterId)
                .with_context(|| format!("{}: cluster is {text:?}, which is no id", self.path.display()))
        };
        self.text(&CLUSTER).map(parse).transpose()
    }

    /// Which node this machine is.
    pub fn node(&self) -> Option<NodeId> {
        self.get(&NODE_NUMBER)?.as_integer().and_then(|number| u32::try_from(number).ok()).map(NodeId)
    }

    /// Where its OSDs listen.
    pub fn listen(&self) -> anyhow::Result<IpAddr> {
        let Some(text) = self.text(&NODE_LISTEN) else { return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)) };
        text.parse().with_context(|| {
            format!("{}: node.listen is {text:?}, which is no IP address", self.path.display())
        })
    }

    /// On which port of that address clients are served the registry, if they are.
    pub fn client_port(&self) -> anyhow::Result<Option<u16>> {
        let Some(number) = self.get(&NODE_CLIENT_PORT).and_then(Value::as_integer) else {
            return Ok(Some(CLIENT_PORT));
        };
        let port = u16::try_from(number).with_context(|| {
            format!("{}: node.client_port is {number}, which is no port", self.path.display())
        })?;
        Ok(Some(port).filter(|port| *port > 0))
    }

    /// The drives of its OSDs.
    pub fn devices(&self) -> Vec<PathBuf> {
        let array = self.get(&NODE_DEVICES).and_then(Value::as_array);
        let paths = array.into_iter().flatten().filter_map(Value::as_str);
        paths.map(|path| self.directory.join(path)).collect()
    }

    /// Whether its drives have volatile caches, if that is said.
    pub fn volatile_cache(&self) -> Option<bool> {
        self.get(&NODE_VOLATILE_CACHE)?.as_bool()
    }

    /// How long its OSDs poll.
    pub fn spin_max(&self) -> Duration {
        let number = self.get(&NODE_SPIN_US).and_then(Value::as_integer).unwrap_or(0);
        Duration::from_micros(u64::try_from(number).unwrap_or(0))
    }

    /// Says another thing from now on, in the file.
    pub fn set(&mut self, key: &str, to: impl Into<Value>) {
        let item: Item = value(to);
        match key.split_once('.') {
            None => drop(self.document.insert(key, item)),
            Some((table, name)) => {
                let table = self.document.entry(table).or_insert_with(|| Item::Table(Table::new()));
                if let Some(table) = table.as_table_mut() {
                    table.insert(name, item);
                }
            }
        }
    }

    fn unset(&mut self, key: &str) {
        match key.split_once('.') {
            None => drop(self.document.remove(key)),
            Some((table, name)) => {
                let Some(inner) = self.document.get_mut(table).and_then(Item::as_table_like_mut) else {
                    return;
                };
                inner.remove(name);
                if inner.is_empty() {
                    self.document.remove(table);
                }
            }
        }
    }

    /// Names the drives from now on, in the file.
    pub fn set_devices(&mut self, devices: &[PathBuf]) {
        let paths = devices.iter().map(|path| path.strip_prefix(&self.directory).unwrap_or(path));
        let array = Value::from_iter(paths.map(|path| path.display().to_string()));
        self.set(NODE_DEVICES.name, array);
    }

    /// Writes the file, all of it or nothing, for its owner alone: paths of keys stand in it.
    pub fn store(&self) -> anyhow::Result<()> {
        write_privately(&self.path, self.document.to_string().as_bytes())
    }

    /// Every key with its value.
    pub fn show(&self) -> Vec<Shown> {
        let show = |key: &Key| {
            let is_of_environment = self.environment.iter().any(|(name, _)| *name == key.name);
            let (value, origin) = match self.get(key) {
                None => (key.default.to_owned(), Origin::Default),
                Some(value) if is_of_environment => (value.to_string(), Origin::Environment),
                Some(value) => (value.to_string(), Origin::File),
            };
            Shown { key: key.name, value: value.trim().to_owned(), origin, explanation: key.explanation }
        };
        KEYS.iter().map(show).collect()
    }
}

/// Writes a file that only its owner may read, all of it or nothing.
fn write_privately(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let write = || -> std::io::Result<()> {
        // One that was left there may be anybody's to read.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn find<'a>(document: &'a DocumentMut, name: &str) -> Option<&'a Value> {
    match name.split_once('.') {
        None => document.get(name)?.as_value(),
        Some((table, name)) => document.get(table)?.as_table_like()?.get(name)?.as_value(),
    }
}

/// Whether a file says only what is known, in the way it is wanted.
fn check(document: &DocumentMut) -> Result<(), String> {
    let check_key = |name: &str, item: &Item| {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(format!("there is no key {name}; `millpond config show` lists all there are"));
        };
        match item.as_value() {
            Some(value) if key.fits(value) => Ok(()),
            _ => Err(format!("{name} is not what it should be: {}", key.explanation)),
        }
    };
    for (name, item) in document.iter() {
        let Some(table) = item.as_table_like() else {
            check_key(name, item)?;
            continue;
        };
        for (inner, item) in table.iter() {
            check_key(&format!("{name}.{inner}"), item)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str, environment: &[(&str, &str)]) -> anyhow::Result<Settings> {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        std::fs::write(directory.settings_file(), text).unwrap();
        let variable = |name: &str| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::load_with(&directory, variable)
    }

    #[test]
    fn the_environment_goes_before_the_file_and_the_file_before_the_default() {
        let text = "registry = \"etcd://a\" # ours\n[node]\nnumber = 3\nlisten = \"10.0.0.1\"\ndevices = [\"/dev/x\"]\n";
        let read = settings(text, &[("MILLPOND_NODE_LISTEN", "10.0.0.2")]).unwrap();
        assert_eq!(read.node(), Some(NodeId(3)));
        assert_eq!(read.listen().unwrap().to_string(), "10.0.0.2");
        assert_eq!(read.devices(), [PathBuf::from("/dev/x")]);
        assert_eq!(read.registry().unwrap().unwrap().to_string(), "etcd://a:2379/millpond/");
        let shown = read.show();
        assert_eq!(shown.len(), KEYS.len());
        let origin = |key: &str| shown.iter().find(|shown| shown.key == key).unwrap().origin.clone();
        assert_eq!(origin("node.listen"), Origin::Environment);
        assert_eq!(origin("node.number"), Origin::File);
        assert_eq!(origin("node.spin_us"), Origin::Default);
        assert!(shown.iter().all(|shown| !shown.explanation.is_empty() && !shown.value.is_empty()));
    }

    #[test]
    fn what_is_changed_leaves_the_rest_of_the_file_as_it_was() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        std::fs::write(directory.settings_file(), "# mine\nregistry = \"etcd://a\" # ours\n").unwrap();
        let mut read = Settings::load_with(&directory, |_| None).unwrap();
        read.set("node.number", 4);
        read.set_devices(&[directory.path().join("osd.img"), "/dev/y".into()]);
        read.store().unwrap();
        let text = std::fs::read_to_string(directory.settings_file()).unwrap();
        assert!(text.starts_with("# mine\nregistry = \"etcd://a\" # ours\n"), "{text}");
        assert!(text.contains("devices = [\"osd.img\", \"/dev/y\"]"), "{text}");
        assert!(Settings::are_there(&directory));
        let again = Settings::load_with(&directory, |_| None).unwrap();
        assert_eq!(again.devices(), [directory.path().join("osd.img"), "/dev/y".into()]);
        assert_eq!(again.node(), Some(NodeId(4)));
    }

    #[test]
    fn a_registry_that_is_forgotten_leaves_what_is_not_of_it() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        std::fs::write(directory.settings_file(), "# mine\n[node]\nspin_us = 7\n").unwrap();
        assert!(!Settings::are_there(&directory), "no registry is named");
        let mut read = Settings::load_with(&directory, |_| None).unwrap();
        let before = read.document.to_string();
        read.set_registry("etcds://a", ClusterId::default());
        read.set_etcd(&EtcdPaths {
            ca: Some("ca.pem".into()),
            user: Some("u".into()),
            ..EtcdPaths::default()
        });
        assert!(!read.are_of_up());
        read.set_up(Some([10, 0, 0, 1].into()));
        assert!(read.are_of_up());
        assert_eq!(read.listen().unwrap().to_string(), "10.0.0.1");
        let refusal = read.require_node(&directory).unwrap_err().to_string();
        assert!(refusal.contains("millpond up"), "{refusal}");
        read.store().unwrap();
        assert!(Settings::are_there(&directory));
        read.forget_registry();
        assert_eq!(read.document.to_string(), before);
        read.store().unwrap();
        assert!(!Settings::are_there(&directory));
        std::fs::write(directory.settings_file(), "[node").unwrap();
        assert!(Settings::are_there(&directory), "whoever reads them is told what is wrong with them");
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (text, words) in [
            ("registry", "not TOML"),
            ("registy = \"etcd://a\"", "no key registy"),
            ("[node]\nlisten = 3", "node.listen"),
            ("[node]\nnumber = -3", "node.number"),
            ("[node]\ndevices = [1]", "node.devices"),
            ("node = 3", "no key node"),
        ] {
            let refusal = format!("{:#}", settings(text, &[]).unwrap_err());
            assert!(refusal.contains(words), "{text}: {refusal}");
        }
        let refusal = |text: &str| format!("{:#}", settings(text, &[]).unwrap().registry().unwrap_err());
        assert!(refusal("registry = \"http://a\"").contains("names no etcd"));
        assert!(refusal("registry = \"etcds://a\"\n[etcd]\nkey = \"nowhere\"").contains("etcd.certificate"));
        assert!(refusal("registry = \"etcd://a\"\n[etcd]\nuser = \"u\"").contains("password_file"));
        let refusal = settings("", &[("MILLPOND_NODE_NUMBER", "x")]).unwrap_err().to_string();
        assert!(refusal.contains("MILLPOND_NODE_NUMBER is \"x\""), "{refusal}");
    }
}
