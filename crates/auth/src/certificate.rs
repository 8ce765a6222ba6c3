//! X.509 certificates of keys, for programs that speak TLS and know nothing of the handshake of [`Identity`](crate::Identity).
//!
//! Whoever owns a cluster vouches for servers: its key signs their certificates, and clients are given the one of its own, by which
//! they know a server. For clients nobody vouches: what a key may do stands in the cluster map, whatever a certificate says of it.
//! So of a client's certificate nothing counts but its Ed25519 key, which the client proves to have.
//!
//! The files are called and written as QEMU and the tools of NBD read them.

use crate::error::{AuthError, HANDSHAKE_LIMIT};
use crate::exchange::{Exchange, Failure};
use crate::handshake::provider;
use crate::key::{SecretKey, public_key};
use base::PublicKey;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection};
use rustls::version::TLS13;
use rustls::{
    CertificateError as Wrong, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tls::Session;
use tokio::net::TcpStream;
use tokio::time::timeout;
use webpki::EndEntityCert;

/// The certificate by which clients know servers.
pub const AUTHORITY_FILE: &str = "ca-cert.pem";
/// A server's, and its key.
pub const SERVER_FILES: [&str; 2] = ["server-cert.pem", "server-key.pem"];
/// A client's, and its key.
pub const CLIENT_FILES: [&str; 2] = ["client-cert.pem", "client-key.pem"];

/// Clocks may differ by so much.
const CLOCKS_DIFFER: Duration = Duration::from_secs(24 * 3600);
/// The authority's certificate is the same each time that it is written: it begins and ends then.
const AUTHORITY_YEARS: [i32; 2] = [2020, 2120];

/// Why there is no certificate, or no server by one.
#[derive(thiserror::Error, Debug)]
pub enum CertificateError {
    /// It cannot be made so.
    #[error("the certificate cannot be made: {0}")]
    Impossible(#[from] rcgen::Error),
    /// A file of it cannot be read.
    #[error("{path}: {reason}; `millpond auth certificate` writes certificates")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// A certificate and its key, each as the text of a file.
pub struct Certified {
    /// The certificate, in PEM.
    pub certificate: String,
    /// The key, in PEM. Whoever has it can act as whoever it is of.
    pub key: String,
}

impl std::fmt::Debug for Certified {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Nothing that is secret.
        formatter.debug_struct("Certified").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Whoever vouches for servers.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").finish_non_exhaustive()
    }
}

fn pair_of(key: &SecretKey) -> Result<KeyPair, rcgen::Error> {
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(key.der().to_vec()), &PKCS_ED25519)
}

fn valid_for(params: &mut CertificateParams, lifetime: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCKS_DIFFER).into();
    params.not_after = (now + lifetime).into();
}

impl Authority {
    /// Whoever has that key vouches, under a name for people. The same key and name make the same certificate.
    ///
    /// # Errors
    /// [`CertificateError::Impossible`].
    pub fn new(key: &SecretKey, name: &str) -> Result<Authority, CertificateError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(1u64.into());
        let [begins, ends] = AUTHORITY_YEARS;
        (params.not_before, params.not_after) = (date_time_ymd(begins, 1, 1), date_time_ymd(ends, 1, 1));
        let pair = pair_of(key)?;
        let certificate = params.self_signed(&pair)?.pem();
        Ok(Authority { issuer: Issuer::new(params, pair), certificate })
    }

    /// Its certificate, in PEM: what clients know servers by.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a server that is reached under these names and addresses, and a new key.
    ///
    /// # Errors
    /// [`CertificateError::Impossible`]: one of them is neither.
    pub fn server(&self, names: &[String], lifetime: Duration) -> Result<Certified, CertificateError> {
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, names.first().map_or("Millpond", String::as_str));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        valid_for(&mut params, lifetime);
        let pair = KeyPair::generate_for(&PKCS_ED25519)?;
        let certificate = params.signed_by(&pair, &self.issuer)?.pem();
        Ok(Certified { certificate, key: pair.serialize_pem() })
    }

    /// A certificate for a client that has that key, under a name for people.
    ///
    /// # Errors
    /// [`CertificateError::Impossible`].
    pub fn client(
        &self,
        key: &SecretKey,
        name: &str,
        lifetime: Duration,
    ) -> Result<Certified, CertificateError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        valid_for(&mut params, lifetime);
        let pair = pair_of(key)?;
        let certificate = params.signed_by(&pair, &self.issuer)?.pem();
        Ok(Certified { certificate, key: pair.serialize_pem() })
    }
}

/// A server that proves itself by a certificate, and has clients prove their keys.
#[derive(Clone, Debug)]
pub struct CertifiedServer {
    config: Arc<ServerConfig>,
}

impl CertifiedServer {
    /// The one whose files lie in a directory: see [`SERVER_FILES`].
    ///
    /// # Errors
    /// [`CertificateError::File`].
    pub fn load(directory: &Path) -> Result<CertifiedServer, CertificateError> {
        let [certificate, key] = SERVER_FILES.map(|name| directory.join(name));
        let failed = |path: &Path, reason: String| CertificateError::File { path: path.to_owned(), reason };
        let chain = CertificateDer::pem_file_iter(&certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| failed(&certificate, error.to_string()))?;
        let secret = PrivateKeyDer::from_pem_file(&key).map_err(|error| failed(&key, error.to_string()))?;
        CertifiedServer::new(chain, secret).map_err(|error| failed(&certificate, error.to_string()))
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<CertifiedServer, Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(AnyCertifiedKey(provider())))
            .with_single_cert(chain, key)?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.enable_secret_extraction = true;
        Ok(CertifiedServer { config: Arc::new(config) })
    }

    /// Proves this server to whoever connected, and has it prove its key. What it sent behind the handshake is in the session.
    ///
    /// # Errors
    /// When that fails; the connection is of no use then.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(std::net::TcpStream, Session, PublicKey), AuthError> {
        let accepting = self.accept_now(stream);
        timeout(HANDSHAKE_LIMIT, accepting).await.map_err(|_| AuthError::TooSlow)?
    }

    async fn accept_now(
        &self,
        stream: TcpStream,
    ) -> Result<(std::net::TcpStream, Session, PublicKey), AuthError> {
        let means = |failure| match failure {
            Failure::Connection(error) => AuthError::Connection(error),
            Failure::Tls(error) => AuthError::Protocol(error.to_string()),
        };
        let tls = UnbufferedServerConnection::new(self.config.clone());
        let mut exchange = Exchange::new(tls.map_err(|error| means(Failure::Tls(error)))?, stream);
        exchange.establish().await.map_err(means)?;
        let certificate = exchange.tls().peer_certificates().and_then(<[_]>::first);
        let key = certificate.and_then(key_of);
        let key = key.ok_or_else(|| AuthError::Protocol("it showed no Ed25519 key".to_owned()))?;
        let (stream, session) = exchange.into_session()?;
        Ok((stream.into_std().map_err(AuthError::Connection)?, session, key))
    }
}

/// The key that a certificate is of, if it is an Ed25519 one.
fn key_of(certificate: &CertificateDer<'_>) -> Option<PublicKey> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    public_key(certificate.subject_public_key_info().as_ref())
}

/// Takes whoever connects to be who its key says, whatever else its certificate says; what that key may do is decided after the
/// handshake.
#[derive(Debug)]
struct AnyCertifiedKey(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertifiedKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match key_of(end_entity) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(Error::InvalidCertificate(Wrong::BadEncoding)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        crate::handshake::not_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::client::WantsClientCert;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn authority() -> Authority {
        Authority::new(&SecretKey::generate().unwrap(), "Millpond test").unwrap()
    }

    fn server_of(authority: &Authority, name: &str) -> CertifiedServer {
        let directory = tempfile::tempdir().unwrap();
        let Certified { certificate, key } = authority.server(&[name.to_owned()], DAY).unwrap();
        for (file, text) in SERVER_FILES.iter().zip([certificate, key]) {
            std::fs::write(directory.path().join(file), text).unwrap();
        }
        CertifiedServer::load(directory.path()).unwrap()
    }

    fn roots(authority: &Authority) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
        roots
    }

    /// A client that knows servers by those roots and shows that certificate, or none.
    fn client_of(roots: RootCertStore, certified: Option<&Certified>) -> ClientConfig {
        match certified {
            Some(certified) => try_client_of(roots, certified).unwrap(),
            None => builder(roots).with_no_client_auth(),
        }
    }

    fn builder(roots: RootCertStore) -> rustls::ConfigBuilder<ClientConfig, WantsClientCert> {
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        builder.unwrap().with_root_certificates(roots)
    }

    fn try_client_of(roots: RootCertStore, certified: &Certified) -> Result<ClientConfig, Error> {
        let Certified { certificate, key } = certified;
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        builder(roots).with_client_auth_cert(chain, key)
    }

    /// What becomes of a handshake in which the client says something at once, and what the server reads of that.
    fn shake(server: &CertifiedServer, client: ClientConfig) -> (Result<PublicKey, AuthError>, Vec<u8>) {
        let pause = Duration::from_millis(5);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let says = std::thread::spawn(move || {
            let name = ServerName::try_from("pond.example").unwrap();
            let mut tls = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            // It waits for the end of the handshake, and goes out with that.
            tls.writer().write_all(b"said at once").unwrap();
            let _ = tls.complete_io(&mut stream);
            // Until the server has seen all of it.
            let _ = stream.read(&mut [0]);
        });
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let accepted = runtime.block_on(async {
            let stream = TcpStream::from_std(stream).unwrap();
            let mut accepting = std::pin::pin!(server.accept(stream));
            // So that what the client says is there when the end of its handshake is read.
            std::future::poll_fn(|context| {
                std::thread::sleep(pause);
                accepting.as_mut().poll(context)
            })
            .await
        });
        let mut heard = vec![0; 64];
        let result = accepted.map(|(mut stream, mut session, key)| {
            stream.set_nonblocking(false).unwrap();
            let mut count = 0;
            while count < 12 {
                count += match session.read(&mut heard[count..]).unwrap() {
                    0 => {
                        let received = stream.read(session.space()).unwrap();
                        session.received(received);
                        0
                    }
                    read => read,
                };
            }
            heard.truncate(count);
            key
        });
        says.join().unwrap();
        (result, heard)
    }

    #[test]
    fn a_client_proves_its_key_and_what_it_says_at_once_is_not_lost() {
        let authority = authority();
        let server = server_of(&authority, "pond.example");
        let key = SecretKey::generate().unwrap();
        let certified = authority.client(&key, "guest", DAY).unwrap();
        for _ in 0..20 {
            let (accepted, heard) = shake(&server, client_of(roots(&authority), Some(&certified)));
            assert_eq!((accepted.unwrap(), heard.as_slice()), (key.public(), &b"said at once"[..]));
        }
        // Whoever vouches for the client is of no account.
        let foreign = self::authority().client(&key, "guest", DAY).unwrap();
        let (accepted, _) = shake(&server, client_of(roots(&authority), Some(&foreign)));
        assert_eq!(accepted.unwrap(), key.public());
    }

    #[test]
    fn who_shows_no_key_or_that_of_another_is_refused_and_so_is_a_server_that_nobody_vouches_for() {
        let (authority, other) = (authority(), authority());
        let server = server_of(&authority, "pond.example");
        let (accepted, _) = shake(&server, client_of(roots(&authority), None));
        assert!(matches!(accepted, Err(AuthError::Protocol(_))), "{accepted:?}");
        let [mine, theirs] = [(); 2].map(|()| SecretKey::generate().unwrap());
        let stolen = Certified {
            certificate: authority.client(&theirs, "them", DAY).unwrap().certificate,
            key: authority.client(&mine, "me", DAY).unwrap().key,
        };
        // A library that looks for that itself does not even try.
        assert!(try_client_of(roots(&authority), &stolen).is_err());
        let certified = authority.client(&mine, "me", DAY).unwrap();
        let (accepted, _) = shake(&server, client_of(roots(&other), Some(&certified)));
        assert!(accepted.is_err());
        let elsewhere = server_of(&authority, "other.example");
        let (accepted, _) = shake(&elsewhere, client_of(roots(&authority), Some(&certified)));
        assert!(accepted.is_err());
    }

    #[test]
    fn the_certificate_of_an_authority_is_the_same_each_time_and_files_that_are_none_are_told() {
        let key = SecretKey::generate().unwrap();
        let [one, two] = [(); 2].map(|()| Authority::new(&key, "Millpond").unwrap());
        assert_eq!(one.certificate(), two.certificate());
        let directory = tempfile::tempdir().unwrap();
        let load = || CertifiedServer::load(directory.path()).unwrap_err().to_string();
        assert!(load().contains("server-cert.pem"), "{}", load());
        let Certified { certificate, .. } = one.server(&["127.0.0.1".to_owned()], DAY).unwrap();
        std::fs::write(directory.path().join("server-cert.pem"), certificate).unwrap();
        assert!(load().contains("server-key.pem"), "{}", load());
    }
}
