//! The file of an embedded registry: a redb database with a record per key and per lease.
//!
//! | table  | key             | value |
//! |--------|-----------------|-------|
//! | `meta` | `"format"`      | u64, [`FORMAT`] |
//! | `meta` | `"revision"`    | u64 |
//! | `meta` | `"cluster high"`, `"cluster low"` | the cluster's id, two u64, big-endian halves |
//! | `keys` | the key         | crc32c u32, create revision u64, mod revision u64, version u64, lease u64 (0: none), then the value; little-endian |
//! | `leases` | id u64        | time to live in milliseconds, u64 |
//!
//! A commit is two-phase: redb then never falls back to the commit before when the newest fails its
//! checksum. That would turn damage into silent loss; an error is what is wanted.

use super::verify::{FLAGS_OFFSET, verify};
use base::{ClusterId, crc32c};
use redb::{Builder, Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use registry::Value;
use registry::implement::{State, Write};
use registry::{KeyValue, LeaseId, Revision};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const KEYS: TableDefinition<&str, &[u8]> = TableDefinition::new("keys");
const LEASES: TableDefinition<u64, u64> = TableDefinition::new("leases");

/// The version of the layout above. A newer one is refused.
const FORMAT: u64 = 1;
/// Bytes before the value in a record of `keys`.
const RECORD_HEADER_BYTES: usize = 36;
/// The whole state is in memory besides, so redb's own cache stays small.
const CACHE_BYTES: usize = 16 << 20;

/// Why an embedded registry could not be opened or created.
#[derive(thiserror::Error, Debug)]
pub enum OpenError {
    /// There is no such file.
    #[error("{path}: there is no registry; start a cluster in this directory with `millpond up`")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// There is one already.
    #[error("{path}: there is a registry already; open it, or move it away to start a new cluster")]
    AlreadyThere {
        /// The file.
        path: PathBuf,
    },
    /// Another process, or this one, has it open.
    #[error(
        "{path}: the registry is in use by another process; is this cluster running already? stop it with `millpond down`"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is no registry, or is one that was damaged.
    #[error(
        "{path}: the registry file is damaged or not one of Millpond's ({reason}); keep it, and put the newest copy from a backup in its place; the OSDs keep their data, and volumes and placement that were changed since that copy are not known by it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not verify.
        reason: String,
    },
    /// A later version wrote it.
    #[error(
        "{path}: the registry has format {found}, this millpond reads up to {FORMAT}; run the version that wrote it, or a newer one"
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// It belongs to another cluster.
    #[error(
        "{path}: the registry belongs to cluster {found}, not {expected}; give the directory of cluster {expected}"
    )]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: ClusterId,
        /// Whose it should be.
        expected: ClusterId,
    },
    /// The system refused.
    #[error("{path}: {source}; check that the directory exists, is writable, and has room")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The open file, locked against every other opener.
pub(super) struct RegistryFile {
    database: Database,
}

impl RegistryFile {
    /// Makes a file with an empty state. It appears under its name complete, or not at all.
    pub(super) fn create(path: &Path, cluster: ClusterId) -> Result<RegistryFile, OpenError> {
        let io_error = |source| OpenError::Io { path: path.to_owned(), source };
        if path.symlink_metadata().is_ok() {
            return Err(OpenError::AlreadyThere { path: path.to_owned() });
        }
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(format!(".unfinished-{}", uuid::Uuid::new_v4()));
        let unfinished = PathBuf::from(unfinished);
        let made = RegistryFile::write_new(path, &unfinished, cluster).and_then(|file| {
            // Unlike a rename, a link never replaces what another process created meanwhile.
            match fs::hard_link(&unfinished, path) {
                Ok(()) => Ok(file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Err(OpenError::AlreadyThere { path: path.to_owned() })
                }
                Err(source) => Err(io_error(source)),
            }
        });
        let _ = fs::remove_file(&unfinished);
        let file = made?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(io_error)?;
        Ok(file)
    }

    fn write_new(path: &Path, unfinished: &Path, cluster: ClusterId) -> Result<RegistryFile, OpenError> {
        let handle = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(unfinished)
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_file(handle)
            .map_err(|error| refusal(path, error))?;
        let file = RegistryFile { database };
        let (high, low) = cluster.0.as_u64_pair();
        let meta = [("format", FORMAT), ("revision", 0), ("cluster high", high), ("cluster low", low)];
        file.write(&meta, &[]).map_err(|error| refusal(path, error))?;
        Ok(file)
    }

    /// Opens a file, verifies all of it, and returns what it holds.
    pub(super) fn open(path: &Path) -> Result<(RegistryFile, State, ClusterId), OpenError> {
        let io_error = |source| OpenError::Io { path: path.to_owned(), source };
        let damaged = |reason: String| OpenError::Damaged { path: path.to_owned(), reason };
        let mut handle = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::Missing { path: path.to_owned() });
            }
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Err(damaged("it is a directory".to_owned()));
            }
            other => other.map_err(io_error)?,
        };
        if !handle.metadata().map_err(io_error)?.is_file() {
            return Err(damaged("it is not a regular file".to_owned()));
        }
        // redb takes this lock too; it is taken here already so that nobody writes what is being verified.
        match handle.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => return Err(io_error(source)),
        }
        let mut bytes = Vec::new();
        handle.read_to_end(&mut bytes).map_err(io_error)?;
        // Its own creation never leaves an empty file, and redb would take one for a new database.
        if bytes.is_empty() {
            return Err(damaged("it is empty".to_owned()));
        }
        let flags = verify(&bytes, CACHE_BYTES).map_err(damaged)?;
        if flags != bytes[FLAGS_OFFSET] {
            tracing::warn!(path = %path.display(), "the registry's header named the older commit; the newer is whole and is taken");
            handle.write_all_at(&[flags], FLAGS_OFFSET as u64).map_err(io_error)?;
            handle.sync_data().map_err(io_error)?;
        }
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_file(handle)
            .map_err(|error| refusal(path, error))?;
        let file = RegistryFile { database };
        let (state, cluster) = file.read(path)?;
        Ok((file, state, cluster))
    }

    fn read(&self, path: &Path) -> Result<(State, ClusterId), OpenError> {
        let damaged = |reason: String| OpenError::Damaged { path: path.to_owned(), reason };
        let contents = self.read_tables().map_err(|error| refusal(path, error))?;
        let format = contents.format.ok_or_else(|| damaged("its format is not given".to_owned()))?;
        if format > FORMAT {
            return Err(OpenError::NewerFormat { path: path.to_owned(), found: format });
        }
        if format != FORMAT {
            return Err(damaged(format!("its format is {format}")));
        }
        let (Some(revision), Some(cluster)) = (contents.revision, contents.cluster) else {
            return Err(damaged("its revision or cluster is not given".to_owned()));
        };
        let entries: Result<Vec<_>, String> =
            contents.records.iter().map(|(key, record)| decode_record(key, record)).collect();
        let leases = contents.leases.iter().map(|&(id, ttl_ms)| (LeaseId(id), Duration::from_millis(ttl_ms)));
        let state = State::restore(Revision(revision), entries.map_err(damaged)?, leases.collect());
        Ok((state.map_err(damaged)?, cluster))
    }

    fn read_tables(&self) -> Result<Contents, redb::Error> {
        let transaction = self.database.begin_read()?;
        let meta = transaction.open_table(META)?;
        let number = |name: &str| -> Result<Option<u64>, redb::Error> {
            Ok(meta.get(name)?.map(|number| number.value()))
        };
        let halves = number("cluster high")?.zip(number("cluster low")?);
        let cluster = halves.map(|(high, low)| ClusterId(uuid::Uuid::from_u64_pair(high, low)));
        let mut contents = Contents {
            format: number("format")?,
            revision: number("revision")?,
            cluster,
            ..Contents::default()
        };
        for entry in transaction.open_table(KEYS)?.iter()? {
            let (key, record) = entry?;
            contents.records.push((key.value().to_owned(), record.value().to_owned()));
        }
        for entry in transaction.open_table(LEASES)?.iter()? {
            let (id, ttl_ms) = entry?;
            contents.leases.push((id.value(), ttl_ms.value()));
        }
        Ok(contents)
    }

    /// Makes the writes durable, all or none, together with the revision that they lead to.
    pub(super) fn commit(&self, revision: Revision, writes: &[Write]) -> Result<(), redb::Error> {
        self.write(&[("revision", revision.0)], writes)
    }

    fn write(&self, meta: &[(&str, u64)], writes: &[Write]) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        transaction.set_two_phase_commit(true);
        {
            let mut table = transaction.open_table(META)?;
            for &(name, number) in meta {
                table.insert(name, number)?;
            }
            let mut keys = transaction.open_table(KEYS)?;
            let mut leases = transaction.open_table(LEASES)?;
            for write in writes {
                match write {
                    Write::Put(entry) => {
                        drop(keys.insert(entry.key.as_str(), encode_record(entry).as_slice())?);
                    }
                    Write::Delete(key) => drop(keys.remove(key.as_str())?),
                    Write::Lease(id, ttl) => drop(leases.insert(id.0, ttl.as_millis() as u64)?),
                    Write::LeaseEnd(id) => drop(leases.remove(id.0)?),
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

#[derive(Default)]
struct Contents {
    format: Option<u64>,
    revision: Option<u64>,
    cluster: Option<ClusterId>,
    records: Vec<(String, Vec<u8>)>,
    leases: Vec<(u64, u64)>,
}

fn refusal(path: &Path, error: impl Into<redb::Error>) -> OpenError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => OpenError::InUse { path },
        // A read beyond the end is a file that was cut, not a drive that fails.
        redb::Error::Io(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            OpenError::Damaged { path, reason: "it was cut short".to_owned() }
        }
        redb::Error::Io(source) if source.kind() == io::ErrorKind::InvalidData => {
            OpenError::Damaged { path, reason: source.to_string() }
        }
        redb::Error::Io(source) => OpenError::Io { path, source },
        other => OpenError::Damaged { path, reason: other.to_string() },
    }
}

fn encode_record(entry: &KeyValue) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_HEADER_BYTES + entry.value.len());
    record.extend([0; 4]);
    let lease = entry.lease.map_or(0, |lease| lease.0);
    for number in [entry.create_revision.0, entry.mod_revision.0, entry.version, lease] {
        record.extend(number.to_le_bytes());
    }
    record.extend(entry.value.as_bytes());
    let checksum = record_checksum(&entry.key, &record);
    record[..4].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn decode_record(key: &str, record: &[u8]) -> Result<KeyValue, String> {
    let (header, value) = record
        .split_first_chunk::<RECORD_HEADER_BYTES>()
        .ok_or_else(|| format!("the record of key {key:?} has only {} bytes", record.len()))?;
    let number = |from: usize| u64::from_le_bytes(std::array::from_fn(|at| header[from + at]));
    if header[..4] != record_checksum(key, record).to_le_bytes() {
        return Err(format!("the record of key {key:?} fails its checksum"));
    }
    Ok(KeyValue {
        key: key.to_owned(),
        value: Value::from(value),
        create_revision: Revision(number(4)),
        mod_revision: Revision(number(12)),
        version: number(20),
        lease: Some(LeaseId(number(28))).filter(|lease| lease.0 != 0),
    })
}

/// Of the key and of everything in the record after the checksum.
fn record_checksum(key: &str, record: &[u8]) -> u32 {
    let mut bytes = Vec::with_capacity(key.len() + record.len());
    bytes.extend(key.as_bytes());
    bytes.extend(&record[4..]);
    crc32c(&bytes)
}
