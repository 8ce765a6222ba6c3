//! Secret keys, and the files they live in.

use base::PublicKey;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What PKCS #8 (RFC 8410) puts before the 32 bytes of an Ed25519 key.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// What SubjectPublicKeyInfo (RFC 8410) puts before the 32 bytes of an Ed25519 public key.
pub(crate) const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// A file of a key is much smaller than this, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Nobody but the owner.
const MODE: u32 = 0o600;

/// Why a secret key cannot be had.
#[derive(thiserror::Error, Debug)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("the key {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Others may read it.
    #[error("the key {path} can be read by others than its owner; forbid that with `chmod 600 {path}`")]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// It holds something else.
    #[error("{path} holds no Ed25519 key in PEM ({reason}); `millpond auth add` writes one")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers, so no key can be made")]
    NoRandomness,
}

/// An Ed25519 secret key. It is never shown: what prints it prints the public half.
pub struct SecretKey {
    der: PrivateKeyDer<'static>,
    signer: Arc<dyn SigningKey>,
    public: PublicKey,
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SecretKey of {}", self.public)
    }
}

impl SecretKey {
    /// Draws a new key.
    ///
    /// # Errors
    /// [`KeyError::NoRandomness`].
    pub fn generate() -> Result<SecretKey, KeyError> {
        let mut der = PKCS8_PREFIX.to_vec();
        der.resize(PKCS8_PREFIX.len() + 32, 0);
        let random = rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut der[PKCS8_PREFIX.len()..]).map_err(|_| KeyError::NoRandomness)?;
        Ok(SecretKey::from_der(PrivatePkcs8KeyDer::from(der)).expect("32 bytes are a key"))
    }

    /// Reads a key from its file.
    ///
    /// # Errors
    /// When it is not there, holds something else, or others may read it.
    pub fn load(path: &Path) -> Result<SecretKey, KeyError> {
        let failed = |source| KeyError::File { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(KeyError::Open { path: path.to_owned() });
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
        SecretKey::from_pem(&text).map_err(|reason| KeyError::Invalid { path: path.to_owned(), reason })
    }

    /// Reads a key from the text of its file.
    ///
    /// # Errors
    /// When that holds something else, in words.
    pub fn from_pem(text: impl AsRef<[u8]>) -> Result<SecretKey, String> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_ref()).map_err(|error| error.to_string())?;
        SecretKey::from_der(der)
    }

    /// Writes the key to a new file that only its owner may read, and waits until it is on stable media.
    ///
    /// # Errors
    /// When there is such a file already, or it cannot be written.
    pub fn save(&self, path: &Path, whose: &str) -> Result<(), KeyError> {
        let failed = |source| KeyError::File { path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(MODE).open(path).map_err(failed)?;
        file.write_all(self.to_pem(whose).as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|file| file.sync_all()).map_err(failed)
    }

    /// The key in that file; a new one, if there is no such file.
    ///
    /// # Errors
    /// Those of [`Self::load`] and [`Self::save`].
    pub fn load_or_generate(path: &Path, whose: &str) -> Result<SecretKey, KeyError> {
        match SecretKey::load(path) {
            Err(KeyError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                let key = SecretKey::generate()?;
                key.save(path, whose)?;
                Ok(key)
            }
            loaded => loaded,
        }
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The text of its file: a line on what it is, and PKCS #8 in PEM (RFC 7468).
    fn to_pem(&self, whose: &str) -> String {
        let encoded = STANDARD.encode(self.der.secret_der());
        format!(
            "Secret key of {whose} for Millpond. Whoever has it can act as {whose}.\nIts public half is {}.\n\
             -----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n",
            self.public
        )
    }

    fn from_der(der: PrivatePkcs8KeyDer<'static>) -> Result<SecretKey, String> {
        let signer = rustls::crypto::ring::sign::any_eddsa_type(&der).map_err(|error| error.to_string())?;
        let spki = signer.public_key().ok_or("it has no public half")?;
        let public = public_key(spki.as_ref()).ok_or("it is not an Ed25519 key")?;
        Ok(SecretKey { der: der.into(), signer, public })
    }

    /// The key, as PKCS #8.
    pub(crate) fn der(&self) -> &[u8] {
        self.der.secret_der()
    }

    pub(crate) fn signer(&self) -> Arc<dyn SigningKey> {
        self.signer.clone()
    }
}

/// The key in a SubjectPublicKeyInfo, if it is an Ed25519 one.
pub(crate) fn public_key(spki: &[u8]) -> Option<PublicKey> {
    Some(PublicKey(spki.strip_prefix(&SPKI_PREFIX)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_from_its_file_and_tells_nobody_what_it_is() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("admin.key");
        let key = SecretKey::load_or_generate(&path, "admin").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let again = SecretKey::load_or_generate(&path, "admin").unwrap();
        assert_eq!(key.public(), again.public());
        assert_ne!(SecretKey::generate().unwrap().public(), key.public());
        let secret = STANDARD.encode(key.der.secret_der());
        assert!(std::fs::read_to_string(&path).unwrap().contains(&secret));
        assert!(!format!("{key:?}").contains(&secret));
        assert!(key.save(&path, "admin").is_err(), "a file that is there is not overwritten");
    }

    #[test]
    fn a_file_that_is_no_key_or_open_to_others_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("key");
        let refusal = || SecretKey::load(&path).unwrap_err().to_string();
        assert!(refusal().contains("No such file"));
        std::fs::write(&path, "nothing").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(refusal().contains("chmod 600"), "{}", refusal());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(refusal().contains("no Ed25519 key"), "{}", refusal());
        // A key of another kind, or half a key.
        let half = STANDARD.encode(PKCS8_PREFIX);
        std::fs::write(&path, format!("-----BEGIN PRIVATE KEY-----\n{half}\n-----END PRIVATE KEY-----\n"))
            .unwrap();
        assert!(refusal().contains("no Ed25519 key"), "{}", refusal());
    }
}
