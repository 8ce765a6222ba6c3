//! The handshake that both ends of a connection begin with.

use crate::channel::Channel;
use crate::error::{AuthError, HANDSHAKE_LIMIT};
use crate::exchange::{Exchange, Failure, Side};
use crate::key::{SPKI_PREFIX, SecretKey, public_key};
use base::{Encryption, PublicKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, UnbufferedServerConnection};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;
use tls::Session;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What is spoken after the handshake (RFC 7301): the protocol of docs/protocol.md in plain...
const PLAIN: &[u8] = b"millpond/1";
/// ... or that protocol in records under the keys of the handshake.
const ENCRYPTED: &[u8] = b"millpond/1-tls";
/// The first byte of what the side that was connected to says at last: welcome...
const WELCOME: u8 = 0;
/// ... or not, and why, as text.
const REFUSED: u8 = 1;
/// Bytes of such a reason at most.
const REASON_BYTES_MAX: usize = 1024;

/// A key, ready to prove itself.
#[derive(Clone)]
pub struct Identity {
    public: PublicKey,
    key: Arc<CertifiedKey>,
    /// By whether this side wants encryption.
    plain_server: Arc<ServerConfig>,
    encrypting_server: Arc<ServerConfig>,
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
        let server = |encryption| Arc::new(server_config(certified.clone(), encryption));
        Identity {
            public,
            plain_server: server(Encryption::Off),
            encrypting_server: server(Encryption::On),
            key: certified,
        }
    }

    /// Its public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Proves itself to whoever accepted this connection, who must prove to be `expected`. Nothing was received of what
    /// follows. That is encrypted if either side wants it.
    ///
    /// # Errors
    /// When the other side is somebody else, refuses, or does not encrypt though this one wants it; the connection is of
    /// no use then.
    pub async fn connect(
        &self,
        stream: TcpStream,
        expected: PublicKey,
        encryption: Encryption,
    ) -> Result<Channel, AuthError> {
        let connecting = self.connect_now(stream, expected, encryption);
        let (stream, session) =
            timeout(HANDSHAKE_LIMIT, connecting).await.map_err(|_| AuthError::TooSlow)??;
        Ok(Channel::new(stream, session))
    }

    pub(crate) async fn connect_now<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: T,
        expected: PublicKey,
        encryption: Encryption,
    ) -> Result<(T, Option<Session>), AuthError> {
        let means = |failure| classify(failure, Some(expected), encryption);
        let config = client_config(self.key.clone(), expected, encryption);
        let name = ServerName::try_from("millpond").expect("it is a name");
        let tls = UnbufferedClientConnection::new(Arc::new(config), name)
            .map_err(|error| means(Failure::Tls(error)))?;
        let mut exchange = Exchange::new(tls, stream);
        exchange.establish().await.map_err(means)?;
        let is_encrypted = is_encrypted(&exchange, encryption)?;
        if exchange.hear(1).await.map_err(means)? == [WELCOME] {
            return exchange.into_parts(is_encrypted);
        }
        let reason = exchange.hear_out(REASON_BYTES_MAX).await;
        Err(AuthError::Refused(String::from_utf8_lossy(&reason).into_owned()))
    }

    /// Has whoever connected prove its key, and proves this one. `authorize` says who that is, or why it is refused; the
    /// other side is told. Nothing was received of what follows. That is encrypted if either side wants it.
    ///
    /// # Errors
    /// When the other side has no key, is refused, or does not encrypt though this one wants it; the connection is of no
    /// use then.
    pub async fn accept<T>(
        &self,
        stream: TcpStream,
        encryption: Encryption,
        authorize: impl FnOnce(PublicKey) -> Result<T, String>,
    ) -> Result<(Channel, T), AuthError> {
        let accepting = self.accept_now(stream, encryption, authorize);
        let ((stream, session), principal) =
            timeout(HANDSHAKE_LIMIT, accepting).await.map_err(|_| AuthError::TooSlow)??;
        Ok((Channel::new(stream, session), principal))
    }

    pub(crate) async fn accept_now<S: AsyncRead + AsyncWrite + Unpin, T>(
        &self,
        stream: S,
        encryption: Encryption,
        authorize: impl FnOnce(PublicKey) -> Result<T, String>,
    ) -> Result<((S, Option<Session>), T), AuthError> {
        let means = |failure| classify(failure, None, encryption);
        let config = match encryption {
            Encryption::Off => &self.plain_server,
            Encryption::On => &self.encrypting_server,
        };
        let tls =
            UnbufferedServerConnection::new(config.clone()).map_err(|error| means(Failure::Tls(error)))?;
        let mut exchange = Exchange::new(tls, stream);
        exchange.establish().await.map_err(means)?;
        let is_encrypted = is_encrypted(&exchange, encryption)?;
        let certificate = exchange.tls().peer_certificates().and_then(<[_]>::first);
        let key = certificate.and_then(|spki| public_key(spki));
        let key = key.ok_or_else(|| AuthError::Protocol("it showed no Ed25519 key".to_owned()))?;
        match authorize(key) {
            Ok(principal) => {
                exchange.say(&[WELCOME]).await.map_err(means)?;
                Ok((exchange.into_parts(is_encrypted)?, principal))
            }
            Err(reason) => {
                let text = [&[REFUSED], reason.as_bytes()].concat();
                // It is refused whether it hears why or not.
                let _ = exchange.say(&text).await;
                let _ = exchange.end().await;
                Err(AuthError::Unauthorized { key, reason })
            }
        }
    }
}

/// What is spoken from here on: part of what both sides signed. Who wants encryption offers and takes nothing else, so
/// nobody on the way can talk it down.
fn is_encrypted<S: Side, T: AsyncRead + AsyncWrite + Unpin>(
    exchange: &Exchange<S, T>,
    encryption: Encryption,
) -> Result<bool, AuthError> {
    match exchange.tls().alpn_protocol() {
        Some(ENCRYPTED) => Ok(true),
        Some(PLAIN) if encryption == Encryption::Off => Ok(false),
        // Who names no protocol at all is not refused by TLS.
        _ => Err(AuthError::NoCommonProtocol { encryption }),
    }
}

/// What a side speaks, the preferred first.
fn protocols(encryption: Encryption) -> Vec<Vec<u8>> {
    match encryption {
        Encryption::Off => vec![PLAIN.to_vec(), ENCRYPTED.to_vec()],
        Encryption::On => vec![ENCRYPTED.to_vec()],
    }
}

fn server_config(key: Arc<CertifiedKey>, encryption: Encryption) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .with_client_cert_verifier(Arc::new(AnyKey(provider())))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.alpn_protocols = protocols(encryption);
    // Nothing may follow the handshake but what is said at its end.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.enable_secret_extraction = true;
    config
}

fn client_config(key: Arc<CertifiedKey>, expected: PublicKey, encryption: Encryption) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ThisKey { expected, provider: provider() }))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
    config.alpn_protocols = protocols(encryption);
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    config
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        // As strong as the keys of 128 bits of security that both sides prove, and cheaper than 256.
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..rustls::crypto::ring::default_provider()
    })
}

fn spki(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], &key.0].concat()
}

/// What a failure means.
fn classify(failure: Failure, expected: Option<PublicKey>, encryption: Encryption) -> AuthError {
    match (failure, expected) {
        (Failure::Connection(error), _) => AuthError::Connection(error),
        (Failure::Tls(Error::InvalidCertificate(_)), Some(expected)) => AuthError::Impostor { expected },
        (
            Failure::Tls(
                Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol),
            ),
            _,
        ) => AuthError::NoCommonProtocol { encryption },
        (Failure::Tls(error), _) => AuthError::Protocol(error.to_string()),
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
pub(crate) fn not_tls12() -> Result<HandshakeSignatureValid, Error> {
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
    use Encryption::{Off, On};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

    /// What becomes of a handshake between sides that want this.
    async fn shake(
        near_wants: Encryption,
        far_wants: Encryption,
    ) -> (Result<Channel, AuthError>, Result<(Channel, PublicKey), AuthError>) {
        let (client, server) = (identity(), identity());
        let (near, far) = ends().await;
        let (connected, accepted) = tokio::join!(
            client.connect(near, server.public(), near_wants),
            server.accept(far, far_wants, Ok::<_, String>)
        );
        if let Ok((_, key)) = &accepted {
            assert_eq!(*key, client.public());
        }
        (connected, accepted)
    }

    async fn hears(channel: &mut Channel, expected: &[u8]) {
        let mut heard = Vec::new();
        while heard.len() < expected.len() {
            assert_ne!(channel.receive(&mut heard).await.unwrap(), 0);
        }
        assert!(heard == expected);
    }

    #[tokio::test]
    async fn both_learn_who_the_other_is_and_what_follows_is_theirs_alone() {
        for (near_wants, far_wants) in [(Off, Off), (On, Off), (Off, On), (On, On)] {
            let (near, far) = shake(near_wants, far_wants).await;
            let (mut near, (mut far, _)) = (near.unwrap(), far.unwrap());
            let is_encrypted = near_wants == On || far_wants == On;
            assert_eq!((near.is_encrypted(), far.is_encrypted()), (is_encrypted, is_encrypted));
            let long: Vec<u8> = (0..100_000u32).map(|index| index as u8).collect();
            for said in [b"ping".as_slice(), &long] {
                tokio::join!(async { near.send(said).await.unwrap() }, hears(&mut far, said));
                tokio::join!(async { far.send(said).await.unwrap() }, hears(&mut near, said));
            }
        }
    }

    #[tokio::test]
    async fn who_wants_encryption_goes_on_with_nobody_who_does_not_encrypt() {
        // Another version's, which speaks the first protocol or names none at all.
        for protocols in [vec![PLAIN.to_vec()], vec![]] {
            let (client, mut server) = (identity(), identity());
            let mut config = server_config(server.key.clone(), Off);
            config.alpn_protocols.clone_from(&protocols);
            server.plain_server = Arc::new(config);
            let (near, far) = ends().await;
            let (connected, _) = tokio::join!(
                client.connect(near, server.public(), On),
                server.accept(far, Off, Ok::<_, String>)
            );
            assert!(
                matches!(connected, Err(AuthError::NoCommonProtocol { encryption: On })),
                "{connected:?}"
            );

            let mut config = client_config(client.key.clone(), server.public(), Off);
            config.alpn_protocols = protocols;
            let name = ServerName::try_from("millpond").unwrap();
            let tls = UnbufferedClientConnection::new(Arc::new(config), name).unwrap();
            let (near, far) = ends().await;
            let mut exchange = Exchange::new(tls, near);
            let (_, accepted) = tokio::join!(exchange.establish(), server.accept(far, On, Ok::<_, String>));
            assert!(matches!(accepted, Err(AuthError::NoCommonProtocol { encryption: On })), "{accepted:?}");
        }
    }

    /// What becomes of a handshake between sides that want this, when somebody on the way writes `written` wherever the
    /// client sends `sent`.
    async fn shake_across(
        near_wants: Encryption,
        far_wants: Encryption,
        sent: &'static [u8],
        written: Vec<u8>,
    ) -> (Result<Channel, AuthError>, Result<(Channel, PublicKey), AuthError>) {
        let (client, server) = (identity(), identity());
        let (near, middle_near) = ends().await;
        let (middle_far, far) = ends().await;
        let relay = tokio::spawn(async move {
            let (mut from_client, mut to_client) = middle_near.into_split();
            let (mut from_server, mut to_server) = middle_far.into_split();
            let back = tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                if let Some(at) = bytes[..count].windows(sent.len()).position(|window| window == sent) {
                    bytes[at..at + sent.len()].copy_from_slice(&written);
                }
                if to_server.write_all(&bytes[..count]).await.is_err() {
                    break;
                }
            }
            drop(to_server);
            let _ = back.await;
        });
        let shaken = tokio::join!(
            client.connect(near, server.public(), near_wants),
            server.accept(far, far_wants, Ok::<_, String>)
        );
        drop(relay);
        shaken
    }

    #[tokio::test]
    async fn nobody_on_the_way_talks_encryption_down() {
        // As it is in the hello: a length, and the name.
        const NAME: &[u8] = b"\x0emillpond/1-tls";
        let (near, far) = shake_across(Off, On, NAME, NAME.to_vec()).await;
        assert!(
            near.unwrap().is_encrypted() && far.unwrap().0.is_encrypted(),
            "the relay alone does no harm"
        );
        for (near_wants, far_wants) in [(On, Off), (Off, On), (On, On), (Off, Off)] {
            for index in 1..NAME.len() {
                let mut written = NAME.to_vec();
                written[index] ^= 1;
                let (near, far) = shake_across(near_wants, far_wants, NAME, written).await;
                assert!(near.is_err() && far.is_err(), "{near_wants} {far_wants} {index}: {near:?} {far:?}");
            }
            // Two names in the room of one, of which the first is the one in plain.
            let (near, far) =
                shake_across(near_wants, far_wants, NAME, b"\x0amillpond/1\x03x/1".to_vec()).await;
            assert!(near.is_err() && far.is_err(), "{near_wants} {far_wants}: {near:?} {far:?}");
        }
    }

    #[tokio::test]
    async fn what_is_changed_or_cut_off_on_its_way_is_not_heard() {
        let (near, far) = shake(On, On).await;
        let (mut near, (mut far, _)) = (near.unwrap(), far.unwrap());
        near.send(b"a message").await.unwrap();
        let Channel { stream, .. } = &mut near;
        stream.write_all(&[23, 3, 3, 0, 32]).await.unwrap();
        stream.write_all(&[7; 32]).await.unwrap();
        let mut heard = Vec::new();
        assert_eq!(far.receive(&mut heard).await.unwrap(), 9);
        assert_eq!(far.receive(&mut heard).await.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(heard, b"a message");

        let (near, far) = shake(On, On).await;
        let (near, (mut far, _)) = (near.unwrap(), far.unwrap());
        drop(near);
        assert_eq!(far.receive(&mut heard).await.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn who_has_another_key_is_an_impostor() {
        let (client, server, other) = (identity(), identity(), identity());
        let (near, far) = ends().await;
        let (connected, accepted) =
            tokio::join!(client.connect(near, other.public(), Off), server.accept(far, Off, Ok::<_, String>));
        assert!(matches!(connected, Err(AuthError::Impostor { expected }) if expected == other.public()));
        assert!(accepted.is_err());
    }

    #[tokio::test]
    async fn who_is_refused_hears_why() {
        let (client, server) = (identity(), identity());
        let (near, far) = ends().await;
        let refuse = |_| Err::<(), _>("nobody knows it".to_owned());
        let (connected, accepted) =
            tokio::join!(client.connect(near, server.public(), Off), server.accept(far, Off, refuse));
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
        let (connected, accepted) = tokio::join!(
            stolen.connect(near, server.public(), Off),
            server.accept(far, Off, Ok::<_, String>)
        );
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
        let (connected, accepted) = tokio::join!(
            client.connect(near, server.public(), Off),
            server.accept(far, Off, Ok::<_, String>)
        );
        drop((connected.unwrap(), accepted.unwrap()));
        let recorded = relay.await.unwrap();
        assert!(recorded.len() > 200, "{}", recorded.len());
        let (mut near, far) = ends().await;
        near.write_all(&recorded).await.unwrap();
        let replayed = server.accept(far, Off, Ok::<_, String>).await;
        assert!(matches!(replayed, Err(AuthError::Protocol(_))), "{replayed:?}");
    }

    #[tokio::test]
    async fn who_says_nothing_or_nonsense_is_let_go() {
        let server = identity();
        let (mut near, far) = ends().await;
        near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert!(matches!(server.accept(far, Off, Ok::<_, String>).await, Err(AuthError::Protocol(_))));
        let (near, far) = ends().await;
        drop(near);
        assert!(matches!(server.accept(far, Off, Ok::<_, String>).await, Err(AuthError::Connection(_))));
        tokio::time::pause();
        let (_near, far) = ends().await;
        assert!(matches!(server.accept(far, Off, Ok::<_, String>).await, Err(AuthError::TooSlow)));
    }
}
