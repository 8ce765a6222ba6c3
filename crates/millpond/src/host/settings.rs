//! `DIR/millpond.toml`: what this machine has to know to take part in a cluster whose registry is elsewhere. Every key has
//! a default and a line of explanation; the environment goes before the file. `millpond config show` prints all of it.

use crate::host::addresses::Addresses;
use crate::host::directory::Directory;
use anyhow::{Context, bail};
use auth::{Identity, SecretKey};
use base::{ClusterId, NodeId};
use node::Location;
use registry::Endpoints;
use registry_etcd::{EtcdOptions, EtcdTls, EtcdUser};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml_edit::{DocumentMut, Item, Table, TableLike, Value, de};

/// The key of a machine that is a client, in its directory.
pub const CLIENT_KEY: &str = "client.key";

/// Every key, in the order in which they are shown: its name, with a dot where it is in a table; what holds where nothing is
/// said, for people; and what it is for. Their types are those of [`Said`].
const KEYS: [(&str, &str, &str); 14] = [
    (
        "registry",
        "that of `millpond up` in this directory",
        "where the cluster's registry is: a URL of etcd's, or of nodes that serve it to clients",
    ),
    ("cluster", "whichever the registry has", "the cluster's id: another one is refused"),
    (
        "up",
        "where no registry is named",
        "whether `millpond up` runs this machine's nodes; `millpond registry migrate` says so",
    ),
    ("etcd.ca", "none", "certificates of the authorities whose word on etcd's certificate counts (PEM)"),
    ("etcd.certificate", "none", "the certificate to show etcd (PEM); its common name is the user of etcd"),
    ("etcd.key", "none", "the secret key of that certificate (PEM)"),
    ("etcd.user", "none", "the user of etcd"),
    ("etcd.password_file", "none", "the file that holds that user's password"),
    (
        "node.number",
        "none: this machine is no node",
        "which node this machine is; `millpond node join` chooses it",
    ),
    (
        "node.listen",
        "127.0.0.1",
        "the address of this machine that the others reach its OSDs at; a list of several: on each of them, the first where \
         both can be reached",
    ),
    (
        "node.client_port",
        "6480",
        "the port of these addresses on which clients are served what they may have of the registry; 0: none",
    ),
    ("node.devices", "[]", "the drives of its OSDs; a running node follows what is added"),
    (
        "node.volatile_cache",
        "what the kernel says",
        "whether these drives lose what they did not flush with power; false only with power-loss protection",
    ),
    ("node.spin_us", "0", "the longest an OSD polls before it sleeps, in microseconds"),
];

/// What the file and the environment can say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Said {
    registry: Option<String>,
    cluster: Option<ClusterId>,
    up: bool,
    etcd: EtcdPaths,
    node: Node,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
struct Node {
    number: Option<NodeId>,
    listen: Addresses,
    client_port: u16,
    devices: Vec<PathBuf>,
    volatile_cache: Option<bool>,
    spin_us: u64,
}

impl Default for Node {
    fn default() -> Node {
        Node {
            number: None,
            listen: Addresses::default(),
            client_port: 6480,
            devices: Vec::new(),
            volatile_cache: None,
            spin_us: 0,
        }
    }
}

/// A key with its value: `config show --json` is a list of these.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The key.
    pub key: &'static str,
    /// Its value, as in the file; the default in words.
    pub value: String,
    /// Where that comes from: `default`, `file` or `environment`.
    pub origin: &'static str,
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
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
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
    file: DocumentMut,
    environment: Vec<(&'static str, Value)>,
    /// Both, the environment first.
    said: Said,
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
        Settings::of_text(path, directory.path().to_owned(), &text, variable)
    }

    /// Those that a file of this text says, and the environment.
    fn of_text(
        path: PathBuf,
        directory: PathBuf,
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Settings> {
        let shown = path.display();
        let file: DocumentMut =
            text.parse().with_context(|| format!("{shown} is not TOML; mend it, or restore it"))?;
        let said = de::from_str(text).with_context(|| format!("{shown} says what it cannot; correct it"))?;
        let mut environment = Vec::new();
        for (key, _, explanation) in KEYS {
            let name = format!("MILLPOND_{}", key.replace('.', "_").to_uppercase());
            if let Some(text) = variable(&name) {
                let read = read_variable(key, &text);
                let value = read.with_context(|| {
                    format!("{name} is {text:?}, which is not what it should be: {explanation}")
                })?;
                environment.push((key, value));
            }
        }
        let mut settings = Settings { path, directory, file, environment, said };
        settings.hear();
        Ok(settings)
    }

    /// Takes what the file and the environment say now.
    fn hear(&mut self) {
        let mut both = self.file.clone();
        for (key, value) in &self.environment {
            put(&mut both, key, value.clone());
        }
        self.said = de::from_document(both).expect("what is read and set is of the types of its keys");
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

    /// Where a file that the settings name is.
    fn path_of(&self, named: &Option<PathBuf>) -> Option<PathBuf> {
        named.as_ref().map(|path| self.directory.join(path))
    }

    /// The content of a file that they name.
    fn text_of(&self, named: &Option<PathBuf>) -> anyhow::Result<Option<String>> {
        let Some(path) = self.path_of(named) else { return Ok(None) };
        let read = std::fs::read(&path);
        let bytes = read.with_context(|| {
            format!("cannot read {}, which {} names", path.display(), self.path.display())
        })?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The registry's URL, if it is elsewhere.
    pub fn registry_url(&self) -> Option<&str> {
        self.said.registry.as_deref()
    }

    /// Whether this machine is a client, which nodes serve the registry.
    pub fn are_of_client(&self) -> bool {
        self.registry_url().is_some_and(Endpoints::is_url)
    }

    /// What etcd wants to see, as it stands in the files.
    pub fn etcd_files(&self) -> anyhow::Result<EtcdFiles> {
        let etcd = &self.said.etcd;
        Ok(EtcdFiles {
            ca: self.text_of(&etcd.ca)?,
            certificate: self.text_of(&etcd.certificate)?,
            key: self.text_of(&etcd.key)?,
            user: etcd.user.clone(),
            password: self.text_of(&etcd.password_file)?,
        })
    }

    /// Whether this machine has nodes that `millpond up` runs in a cluster whose registry is elsewhere.
    pub fn are_of_up(&self) -> bool {
        self.said.registry.is_some() && self.said.up
    }

    /// Says from now on, in the file, that `millpond up` runs this machine's nodes, where the others reach them.
    pub fn set_up(&mut self, listen: Option<&Addresses>) {
        self.set("up", true);
        if let Some(listen) = listen {
            self.set("node.listen", listen.to_value());
        }
    }

    /// Forgets, in the file, the registry and all that belongs to it.
    pub fn forget_registry(&mut self) {
        for key in ["registry", "cluster", "up", "etcd"] {
            self.file.remove(key);
        }
        if let Some(node) = self.file.get_mut("node").and_then(Item::as_table_like_mut) {
            node.remove("listen");
            if node.is_empty() {
                self.file.remove("node");
            }
        }
        self.hear();
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
        self.set("registry", url);
        self.set("cluster", cluster.to_string());
    }

    /// Names what etcd wants to see from now on, in the file.
    pub fn set_etcd(&mut self, paths: &EtcdPaths) {
        let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let named = [
            ("etcd.ca", text(&paths.ca)),
            ("etcd.certificate", text(&paths.certificate)),
            ("etcd.key", text(&paths.key)),
            ("etcd.user", paths.user.clone()),
            ("etcd.password_file", text(&paths.password_file)),
        ];
        for (key, value) in named {
            if let Some(value) = value {
                self.set(key, value);
            }
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
        let Some(url) = self.registry_url() else { return Ok(None) };
        let shown = self.path.display();
        if Endpoints::is_url(url) {
            let endpoints = url.parse::<Endpoints>().map_err(anyhow::Error::msg);
            let endpoints = endpoints.with_context(|| format!("{shown}: registry"))?;
            let key = SecretKey::load(&self.directory.join(CLIENT_KEY))
                .context("no key to come to the cluster with; `millpond client join` puts one there")?;
            return Ok(Some(Location::Nodes { endpoints, identity: Identity::new(&key) }));
        }
        let etcd = &self.said.etcd;
        let mut options: EtcdOptions = url.parse().with_context(|| format!("{shown}: registry"))?;
        if url.starts_with("etcds://") {
            let identity = match (self.path_of(&etcd.certificate), self.path_of(&etcd.key)) {
                (None, None) => None,
                (Some(certificate), Some(key)) => Some((certificate, key)),
                _ => bail!("{shown}: etcd.certificate and etcd.key go together; give both"),
            };
            options = options.with_tls(EtcdTls { authorities: self.path_of(&etcd.ca), identity });
        }
        if let Some(name) = &etcd.user {
            let password = self.text_of(&etcd.password_file)?;
            let password = password
                .with_context(|| format!("{shown}: etcd.user goes with etcd.password_file; give both"))?;
            let password = password.trim_end().to_owned();
            options = options.with_user(EtcdUser { name: name.clone(), password });
        }
        Ok(Some(Location::Etcd(options)))
    }

    /// Where the registry is: elsewhere, or with the cluster that is up in the directory of these settings.
    pub fn registry_of(&self, directory: &Directory) -> anyhow::Result<Location> {
        Ok(self.registry()?.unwrap_or_else(|| Location::Socket(directory.registry_socket())))
    }

    /// The cluster that the registry must be of.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.said.cluster
    }

    /// Which node this machine is.
    pub fn node(&self) -> Option<NodeId> {
        self.said.node.number
    }

    /// Where its OSDs listen.
    pub fn listen(&self) -> &Addresses {
        &self.said.node.listen
    }

    /// On which port of these addresses clients are served the registry, if they are.
    pub fn client_port(&self) -> Option<u16> {
        Some(self.said.node.client_port).filter(|port| *port > 0)
    }

    /// The drives of its OSDs.
    pub fn devices(&self) -> Vec<PathBuf> {
        self.said.node.devices.iter().map(|path| self.directory.join(path)).collect()
    }

    /// Whether its drives have volatile caches, if that is said.
    pub fn volatile_cache(&self) -> Option<bool> {
        self.said.node.volatile_cache
    }

    /// How long its OSDs poll.
    pub fn spin_max(&self) -> Duration {
        Duration::from_micros(self.said.node.spin_us)
    }

    /// Says another thing from now on, in the file.
    pub fn set(&mut self, key: &str, to: impl Into<Value>) {
        put(&mut self.file, key, to.into());
        self.hear();
    }

    /// Names the drives from now on, in the file.
    pub fn set_devices(&mut self, devices: &[PathBuf]) {
        let paths = devices.iter().map(|path| path.strip_prefix(&self.directory).unwrap_or(path));
        self.set("node.devices", Value::from_iter(paths.map(|path| path.display().to_string())));
    }

    /// Writes the file, all of it or nothing, for its owner alone: paths of keys stand in it.
    pub fn store(&self) -> anyhow::Result<()> {
        write_privately(&self.path, self.file.to_string().as_bytes())
    }

    /// Every key with its value.
    pub fn show(&self) -> Vec<Shown> {
        let show = |(key, default, explanation): (&'static str, &str, &'static str)| {
            let of_environment = self.environment.iter().find(|(name, _)| *name == key);
            let (value, origin) = match (of_environment, find(&self.file, key)) {
                (Some((_, value)), _) => (value.to_string(), "environment"),
                (None, Some(value)) => (value.to_string(), "file"),
                (None, None) => (default.to_owned(), "default"),
            };
            Shown { key, value: value.trim().to_owned(), origin, explanation }
        };
        KEYS.map(show).into()
    }
}

/// A text of the environment as a value of that key: as a text, as paths with colons between them, or as it would stand in the
/// file, whichever the key wants.
fn read_variable(key: &str, text: &str) -> Option<Value> {
    let paths = text.split(':').filter(|path| !path.is_empty());
    let ways = [Some(text.into()), Some(Value::from_iter(paths)), text.parse().ok()];
    ways.into_iter().flatten().find(|value| {
        let mut document = DocumentMut::new();
        put(&mut document, key, value.clone());
        de::from_document::<Said>(document).is_ok()
    })
}

fn find<'a>(document: &'a DocumentMut, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(document.as_item(), |item, name| item.get(name))?.as_value()
}

fn put(document: &mut DocumentMut, key: &str, value: Value) {
    let (table, name) = key.split_once('.').unwrap_or(("", key));
    let table: &mut dyn TableLike = match table {
        "" => document.as_table_mut(),
        table => {
            let table = document.entry(table).or_insert_with(|| Item::Table(Table::new()));
            table.as_table_like_mut().expect("it was read as a table")
        }
    };
    table.insert(name, Item::Value(value));
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

#[cfg(test)]
mod tests {
    use super::*;
    use fuzz::driver::prove;
    use fuzz::{Outcomes, Target};

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
        assert_eq!(read.listen().to_string(), "10.0.0.2");
        let several = settings("[node]\nlisten = [\"10.0.0.1\", \"fd00::1\"]\n", &[]).unwrap();
        assert_eq!(several.listen().to_string(), "10.0.0.1 and fd00::1");
        let variable = [("MILLPOND_NODE_LISTEN", "[\"10.0.0.1\", \"fd00::1\"]")];
        assert_eq!(settings("", &variable).unwrap().listen(), several.listen());
        assert_eq!(read.devices(), [PathBuf::from("/dev/x")]);
        assert_eq!(read.registry().unwrap().unwrap().to_string(), "etcd://a:2379/millpond/");
        let shown = read.show();
        assert_eq!(shown.len(), KEYS.len());
        let origin = |key: &str| shown.iter().find(|shown| shown.key == key).unwrap().origin;
        assert_eq!(origin("node.listen"), "environment");
        assert_eq!(origin("node.number"), "file");
        assert_eq!(origin("node.spin_us"), "default");
        assert!(shown.iter().all(|shown| !shown.explanation.is_empty() && !shown.value.is_empty()));
    }

    #[test]
    fn whatever_a_file_and_a_variable_say_is_refused_or_said_by_what_is_written() {
        // A file, and behind a zero a variable: the first byte says of which key.
        fn run(input: &[u8], seen: &mut Outcomes) {
            let Some((choice, bytes)) = input.split_first() else { return };
            let text = String::from_utf8_lossy(bytes);
            let (file, variable) = text.split_once('\0').map_or((&*text, None), |(a, b)| (a, Some(b)));
            let (key, ..) = KEYS[usize::from(*choice) % KEYS.len()];
            let wanted = format!("MILLPOND_{}", key.replace('.', "_").to_uppercase());
            let given = |name: &str| variable.filter(|_| name == wanted).map(str::to_owned);
            let which = if variable.is_some() { "variable" } else { "file" };
            let mut settings = match Settings::of_text("a".into(), "/".into(), file, given) {
                Ok(settings) => settings,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return seen.note("refused", which);
                }
            };
            seen.note("read", which);
            assert_eq!(settings.show().len(), KEYS.len());
            settings.set_registry("etcd://a", ClusterId::default());
            settings.set("node.number", 4);
            let written = settings.file.to_string();
            let again = Settings::of_text("a".into(), "/".into(), &written, |_| None).unwrap();
            assert_eq!((again.registry_url(), again.node()), (Some("etcd://a"), Some(NodeId(4))));
            settings.forget_registry();
        }
        const FILES: [&str; 4] = [
            "registry = \"etcd://a\" # ours\n[node]\nnumber = 3\nlisten = [\"10.0.0.1\", \"fd00::1\"]\n",
            "up = true\netcd = { user = \"u\", ca = \"ca.pem\" }\nnode.client_port = 0\n",
            "[etcd]\nkey = '''k'''\n[node]\ndevices = [\"a\",\n\"b\"]\nvolatile_cache = false\n",
            "cluster = \"07070707-0707-0707-0707-070707070707\"\nnode = {}\n",
        ];
        prove(&Target {
            name: "settings",
            about: "settings in a file and in the environment",
            run,
            examples: || {
                let files = FILES.map(|file| [&[0][..], file.as_bytes()].concat());
                let values = ["etcd://b", "true", "/dev/x:/dev/y", "[\"10.0.0.2\"]", "7"];
                let given = (0u8..).zip(KEYS).flat_map(|(number, _)| {
                    let file = FILES[usize::from(number) % FILES.len()];
                    values.map(|value| [&[number][..], file.as_bytes(), b"\0", value.as_bytes()].concat())
                });
                files.into_iter().chain(given).collect()
            },
            expected: || {
                let outcomes = ["file", "variable"].into_iter();
                outcomes.flat_map(|which| [("read", which), ("refused", which)]).collect()
            },
            inputs: 10_000,
            bytes_max: 400,
            memory_bytes_max: 1 << 20,
        });
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
        let before = read.file.to_string();
        read.set_registry("etcds://a", ClusterId::default());
        read.set_etcd(&EtcdPaths {
            ca: Some("ca.pem".into()),
            user: Some("u".into()),
            ..EtcdPaths::default()
        });
        assert!(!read.are_of_up());
        let listen = settings("[node]\nlisten = \"10.0.0.1\"", &[]).unwrap().listen().clone();
        read.set_up(Some(&listen));
        assert!(read.are_of_up());
        assert_eq!(read.listen().to_string(), "10.0.0.1");
        let refusal = read.require_node(&directory).unwrap_err().to_string();
        assert!(refusal.contains("millpond up"), "{refusal}");
        read.store().unwrap();
        assert!(Settings::are_there(&directory));
        read.forget_registry();
        assert_eq!(read.file.to_string(), before);
        read.store().unwrap();
        assert!(!Settings::are_there(&directory));
        std::fs::write(directory.settings_file(), "[node").unwrap();
        assert!(Settings::are_there(&directory), "whoever reads them is told what is wrong with them");
    }

    #[test]
    fn every_key_is_one_that_can_be_said_in_the_file_and_in_the_environment() {
        let texts = ["etcd://a", "3", "true", "127.0.0.1", "67e55044-10b1-426f-9247-bb680e5fe0c8"];
        for (key, ..) in KEYS {
            assert!(texts.iter().any(|text| read_variable(key, text).is_some()), "{key}");
        }
        let variables = [("MILLPOND_NODE_DEVICES", "/dev/x:/dev/y:"), ("MILLPOND_ETCD_USER", "7")];
        let read = settings("", &variables).unwrap();
        assert_eq!(read.devices(), [PathBuf::from("/dev/x"), "/dev/y".into()]);
        assert_eq!(read.said.etcd.user.as_deref(), Some("7"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (text, words) in [
            ("registry", "not TOML"),
            ("\nregisty = \"etcd://a\"", "at line 2"),
            ("registy = \"etcd://a\"", "unknown field `registy`, expected one of `registry`, `cluster`"),
            ("[node]\nlisten = 3", "2 | listen = 3"),
            ("[node]\nlisten = \"here\"", "IP address"),
            ("[node]\nlisten = []", "no address is given"),
            ("[node]\nlisten = [\"::1\", \"10.0.0.1\", \"::1\"]", "::1 is given twice"),
            ("[node]\nnumber = -3", "2 | number = -3"),
            ("[node]\nclient_port = 70000", "expected u16"),
            ("[node]\ndevices = [1]", "2 | devices = [1]"),
            ("node = 3", "expected a table"),
            ("cluster = \"mine\"", "UUID"),
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
