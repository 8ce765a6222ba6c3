//! Certificates: those that etcd is believed by, and ours.
//!
//! They are read anew for each connection, so that renewing them takes no restart.

use rustls::pki_types::{CertificateDer, UnixTime, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Files with certificates and a key, as PEM. All may be absent: then etcd is believed by nobody's word, and it does not
/// learn who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The authorities whose certificates etcd may show.
    pub authorities: Option<PathBuf>,
    /// Our certificate and its key. Its common name is the user of etcd that asks.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl EtcdTls {
    /// What a connection needs to know, as it stands in the files now.
    ///
    /// # Errors
    /// Which file cannot be read.
    pub(super) fn config(&self) -> Result<ClientTlsConfig, String> {
        let mut config = ClientTlsConfig::new();
        if let Some(authorities) = &self.authorities {
            config = config.ca_certificate(Certificate::from_pem(read(authorities)?));
        }
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(config)
    }

    /// What is wrong with our own certificate by the clock of this machine: all that etcd says of it is that it is bad.
    pub(super) fn complaint(&self) -> Option<String> {
        let (certificate, _) = self.identity.as_ref()?;
        let authorities = certificates(self.authorities.as_ref()?);
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
        let chain = certificates(certificate);
        let (own, intermediates) = chain.split_first()?;
        let what = match verifier.verify_client_cert(own, intermediates, UnixTime::now()).err()? {
            rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }) => {
                format!("expired {} h ago", (time.as_secs().saturating_sub(not_after.as_secs())) / 3600)
            }
            rustls::Error::InvalidCertificate(CertificateError::Expired) => "has expired".to_owned(),
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            ) => "is not valid yet by this machine's clock".to_owned(),
            // Etcd may know other authorities than we were told of.
            _ => return None,
        };
        let path = certificate.display();
        Some(format!("our certificate {path} {what}; put a new one there, nothing needs to be restarted"))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// The certificates in a file, as far as there are some.
fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).into_iter().flatten().flatten().collect()
}
