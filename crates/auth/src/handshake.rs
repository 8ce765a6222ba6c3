//! The handshake that both ends of a connection begin with.

use crate::key::{SPKI_PREFIX, SecretKey, public_key};
use base::PublicKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// What is spoken after the handshake: both sides must say so (RFC 7301).
const PROTOCOL: &[u8] = b"millpond/1";
/// The first byte of what the side that was connected to says at last: welcome...
const WELCOME: u8 = 0;
/// ... or not, and why, as text.
const REFUSED: u8 = 1;
/// Bytes of such a reason at most.
const REASON_BYTES_MAX: u64 = 1024;

/// Why a connection came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum AuthError {
    /// The connection broke.
    #[error("the connection ended in the handshake: {0}")]
    Connection(#[source] std::io::Error),
    /// It took too long.
    #[error("the handshake was not done within {} s", HANDSHAKE_LIMIT.as_secs())]
    TooSlow,
    /// The other side has another key than it must have.
    #[error(
        "the other side is not who it should be: it did not prove that it has the key {expected}; is somebody else \
         listening there?"
    )]
    Impostor {
        /// The key that it must have.
        expected: PublicKey,
    },
    /// The other side does not speak this protocol, or breaks it.
    #[error("the handshake failed: {0}")]
    Protocol(String),
    /// The other side refused, as it said.
    #[error("{0}")]
    Refused(String),
    /// This side refused.
    #[error("{key} is refused: {reason}")]
    Unauthorized {
        /// Who connected.
        key: PublicKey,
        /// Why.
        reason: String,
    },
}

/// A key, ready to prove itself.
#[derive(Clone)]
pub struct Identity {
    public: PublicKey,
    key: Arc<CertifiedKey>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Identity of {}", self.public)
    }
}

impl Identity {
    /// The identity of whoever has this key.
    ///
    /// # Panics
    /// Never: the provider has what TLS 1.3 needs.
    #[must_use]
    pub fn new(key: &SecretKey) -> Identity {
        let public = key.public();
        let spki = CertificateDer::from(spki(&public));
        let certified = Arc::new(CertifiedKey::new(vec![spki], key.signer()));
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3")
            .with_client_cert_verifier(Arc::new(AnyKey(provider())))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified.clone())));
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Nothing may follow the handshake but what is said below.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Identity { public, key: certified, server: Arc::new(server) }
    }

    /// Its public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Proves itself to whoever accepted this connection, who must prove to be `expected`. Nothing was received of what
    /// follows.
    ///
    /// # Errors
    /// When the other side is somebody else, or refuses; the connection is of no use then.
    pub async fn connect(&self, stream: TcpStream, expected: PublicKey) -> Result<TcpStream, AuthError> {
        timeout(HANDSHAKE_LIMIT, self.connect_now(stream, expected)).await.map_err(|_| AuthError::TooSlow)?
    }

    async fn connect_now(&self, stream: TcpStream, expected: PublicKey) -> Result<TcpStream, AuthError> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ThisKey { expected, provider: provider() }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.key.clone())));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from("millpond").expect("it is a name");
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream =
            connector.connect(name, stream).await.map_err(|error| classify(error, Some(expected)))?;
        let mut verdict = [REFUSED];
        stream.read_exact(&mut verdict).await.map_err(|error| classify(error, Some(expected)))?;
        if verdict == [WELCOME] {
            return Ok(stream.into_inner().0);
        }
        let mut reason = Vec::new();
        // However it ends, what came of the reason is told.
        let _ = stream.take(REASON_BYTES_MAX).read_to_end(&mut reason).await;
        Err(AuthError::Refused(String::from_utf8_lossy(&reason).into_owned()))
    }

    /// Has whoever connected prove its key, and proves this one. `authorize` says who that is, or why it is refused; the
    /// other side is told. Nothing was received of what follows.
    ///
    /// # Errors
    /// When the other side has no key, or is refused; the connection is of no use then.
    pub async fn accept<T>(
        &self,
        stream: TcpStream,
        authorize: impl FnOnce(PublicKey) -> Result<T, String>,
    ) -> Result<(TcpStream, T), AuthError> {
        timeout(HANDSHAKE_LIMIT, self.accept_now(stream, authorize)).await.map_err(|_| AuthError::TooSlow)?
    }

    async fn accept_now<T>(
        &self,
        stream: TcpStream,
        authorize: impl FnOnce(PublicKey) -> Result<T, String>,
    ) -> Result<(TcpStream, T), AuthError> {
        let acceptor = TlsAcceptor::from(self.server.clone());
        let mut stream = acceptor.accept(stream).await.map_err(|error| classify(error, None))?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let key = certificate.and_then(|spki| public_key(spki));
        let key = key.ok_or_else(|| AuthError::Protocol("it showed no Ed25519 key".to_owned()))?;
        match authorize(key) {
            Ok(principal) => {
                let said = async {
                    stream.write_all(&[WELCOME]).await?;
                    stream.flush().await
                };
                said.await.map_err(AuthError::Connection)?;
                Ok((stream.into_inner().0, principal))
            }
            Err(reason) => {
                let text = [&[REFUSED], reason.as_bytes()].concat();
                // It is refused whether it hears why or not.
                let _ = stream.write_all(&text).await;
                let _ = stream.shutdown().await;
                Err(AuthError::Unauthorized { key, reason })
            }
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn spki(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], &key.0].concat()
}

/// What an error of a TLS stream means.
fn classify(error: std::io::Error, expected: Option<PublicKey>) -> AuthError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match (tls, expected) {
        (Some(Error::InvalidCertificate(_)), Some(expected)) => AuthError::Impostor { expected },
        (Some(tls), _) => AuthError::Protocol(tls.to_string()),
        (None, _) if error.kind() == ErrorKind::InvalidData => AuthError::Protocol(error.to_string()),
        (None, _) => AuthError::Connection(error),
    }
}

fn signature_holds(
    provider: &CryptoProvider,
    message: &[u8],
    spki: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let spki = SubjectPublicKeyInfoDer::from(spki.as_ref());
    verify_tls13_signature_with_raw_key(
        message,
        &spki,
        signature,
        &provider.signature_verification_algorithms,
    )
}

/// Only TLS 1.3 is offered, so this is never asked.
fn not_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
}

/// Takes whoever connects to be who its key says; what that key may do is decided after the handshake.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match public_key(end_entity) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _spki: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        not_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature_holds(&self.0, message, spki, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Takes nobody but the one that has a certain key.
#[derive(Debug)]
struct ThisKey {
    expected: PublicKey,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ThisKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if public_key(end_entity) == Some(self.expected) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _spki: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        not_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature_holds(&self.provider, message, spki, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn identity() -> Identity {
        Identity::new(&SecretKey::generate().unwrap())
    }

    /// A connection's two ends.
    async fn ends() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (connected, accepted) = tokio::join!(connecting, listener.accept());
        (connected.unwrap(), accepted.unwrap().0)
    }

    #[tokio::test]
    async fn both_learn_who_the_other_is_and_what_follows_is_theirs_alone() {
        let (client, server) = (identity(), identity());
        let (near, far) = ends().await;
        let (connected, accepted) =
            tokio::join!(client.connect(near, server.public()), server.accept(far, Ok::<_, String>));
        let (mut near, (mut far, key)) = (connected.unwrap(), accepted.unwrap());
        assert_eq!(key, client.public());
        near.write_all(b"ping").await.unwrap();
        let mut said = [0; 4];
        far.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"ping");
        far.write_all(b"pong").await.unwrap();
        near.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"pong");
    }

    #[tokio::test]
    async fn who_has_another_key_is_an_impostor() {
        let (client, server, other) = (identity(), identity(), identity());
        let (near, far) = ends().await;
        let (connected, accepted) =
            tokio::join!(client.connect(near, other.public()), server.accept(far, Ok::<_, String>));
        assert!(matches!(connected, Err(AuthError::Impostor { expected }) if expected == other.public()));
        assert!(accepted.is_err());
    }

    #[tokio::test]
    async fn who_is_refused_hears_why() {
        let (client, server) = (identity(), identity());
        let (near, far) = ends().await;
        let refuse = |_| Err::<(), _>("nobody knows it".to_owned());
        let (connected, accepted) =
            tokio::join!(client.connect(near, server.public()), server.accept(far, refuse));
        assert_eq!(connected.unwrap_err().to_string(), "nobody knows it");
        assert!(matches!(accepted, Err(AuthError::Unauthorized { key, .. }) if key == client.public()));
    }

    #[tokio::test]
    async fn who_shows_the_public_half_alone_proves_nothing() {
        let (owner, thief, server) =
            (SecretKey::generate().unwrap(), SecretKey::generate().unwrap(), identity());
        let mut stolen = Identity::new(&thief);
        let spki = CertificateDer::from(spki(&owner.public()));
        stolen.key = Arc::new(CertifiedKey::new(vec![spki], thief.signer()));
        let (near, far) = ends().await;
        let (connected, accepted) =
            tokio::join!(stolen.connect(near, server.public()), server.accept(far, Ok::<_, String>));
        assert!(connected.is_err());
        assert!(matches!(accepted, Err(AuthError::Protocol(_))), "{accepted:?}");
    }

    #[tokio::test]
    async fn a_recorded_handshake_is_worth_nothing() {
        let (client, server) = (identity(), identity());
        // What the client sent, by way of one who listens.
        let (near, middle_near) = ends().await;
        let (middle_far, far) = ends().await;
        let relay = tokio::spawn(async move {
            let (mut from_client, mut to_client) = middle_near.into_split();
            let (mut from_server, mut to_server) = middle_far.into_split();
            let back = tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let mut recorded = Vec::new();
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                recorded.extend_from_slice(&bytes[..count]);
                to_server.write_all(&bytes[..count]).await.unwrap();
            }
            drop(to_server);
            let _ = back.await;
            recorded
        });
        let (connected, accepted) =
            tokio::join!(client.connect(near, server.public()), server.accept(far, Ok::<_, String>));
        drop((connected.unwrap(), accepted.unwrap()));
        let recorded = relay.await.unwrap();
        assert!(recorded.len() > 200, "{}", recorded.len());
        let (mut near, far) = ends().await;
        near.write_all(&recorded).await.unwrap();
        let replayed = server.accept(far, Ok::<_, String>).await;
        assert!(matches!(replayed, Err(AuthError::Protocol(_))), "{replayed:?}");
    }

    #[tokio::test]
    async fn who_says_nothing_or_nonsense_is_let_go() {
        let server = identity();
        let (mut near, far) = ends().await;
        near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert!(matches!(server.accept(far, Ok::<_, String>).await, Err(AuthError::Protocol(_))));
        let (near, far) = ends().await;
        drop(near);
        assert!(matches!(server.accept(far, Ok::<_, String>).await, Err(AuthError::Connection(_))));
        tokio::time::pause();
        let (_near, far) = ends().await;
        assert!(matches!(server.accept(far, Ok::<_, String>).await, Err(AuthError::TooSlow)));
    }
}
