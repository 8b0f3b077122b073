//! The certificate and the rules of TLS connections. CONFIG SET replaces them; connections keep those of their handshake.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::lock::lock;
use crate::settings::{TlsClients, TlsSettings};
use crate::settings_error::SettingsError;

/// The settings of TLS, the configuration made from them, and what is counted.
pub(crate) struct TlsState {
    used: Mutex<UsedTls>,
    /// Held while settings are changed, which reads files: so that no change is lost, and connections do not wait for it.
    changing: Mutex<()>,
    failed_handshakes: AtomicU64,
}

/// Settings in use.
struct UsedTls {
    settings: TlsSettings,
    config: Option<Arc<ServerConfig>>,
    /// When the files were read.
    since: Instant,
}

impl UsedTls {
    /// Reads the files of `settings`.
    fn read(settings: TlsSettings) -> Result<UsedTls, SettingsError> {
        Ok(UsedTls {
            config: configuration(&settings)?,
            settings,
            since: Instant::now(),
        })
    }
}

impl TlsState {
    /// Reads the files of `settings`.
    ///
    /// # Errors
    /// [`SettingsError`], which names the file.
    pub(crate) fn new(settings: TlsSettings) -> Result<TlsState, SettingsError> {
        Ok(TlsState {
            used: Mutex::new(UsedTls::read(settings)?),
            changing: Mutex::default(),
            failed_handshakes: AtomicU64::new(0),
        })
    }

    /// The settings now.
    pub(crate) fn settings(&self) -> TlsSettings {
        lock(&self.used).settings.clone()
    }

    /// The configuration of the next connection; `None` without a certificate.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        lock(&self.used).config.clone()
    }

    /// Applies `change` to the settings, reads the files again and uses them from now on. Changes follow one another.
    ///
    /// # Errors
    /// [`SettingsError`], which names the file. Nothing has changed.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut TlsSettings),
    ) -> Result<(), SettingsError> {
        let _changing = lock(&self.changing);
        let mut settings = self.settings();
        change(&mut settings);
        let read = UsedTls::read(settings)?;
        *lock(&self.used) = read;
        Ok(())
    }

    /// Seconds since the files were read.
    pub(crate) fn age_secs(&self) -> u64 {
        lock(&self.used).since.elapsed().as_secs()
    }

    /// Counts a handshake that failed.
    pub(crate) fn note_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of handshakes that failed.
    pub(crate) fn failed_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Ordering::Relaxed)
    }
}

/// Checks settings, and reads their files.
///
/// # Errors
/// [`SettingsError`], which names the parameter and the file.
pub fn check(settings: &TlsSettings) -> Result<(), SettingsError> {
    configuration(settings).map(drop)
}

/// Returns the configuration, or `None` if the settings name no certificate.
fn configuration(settings: &TlsSettings) -> Result<Option<Arc<ServerConfig>>, SettingsError> {
    let TlsSettings {
        cert_file,
        key_file,
        ca_cert_file,
        ..
    } = settings;
    if cert_file.is_empty() && key_file.is_empty() {
        return Ok(None);
    }
    let key_file = if key_file.is_empty() {
        cert_file
    } else {
        key_file
    };
    let certificates = certificates("tls-cert-file", cert_file)?;
    let key = PrivateKeyDer::from_pem_file(Path::new(key_file)).map_err(|error| {
        SettingsError::from_cause(error).of(format_args!("tls-key-file {key_file}"))
    })?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(&settings.protocols)?)
        .map_err(|error| SettingsError::from_cause(error).of("tls-protocols"))?;
    let builder = match settings.clients {
        TlsClients::No => builder.with_no_client_auth(),
        required => {
            if ca_cert_file.is_empty() {
                return Err(SettingsError::new(
                    "tls-ca-cert-file must be specified when tls-auth-clients is enabled",
                ));
            }
            let parameter = format!("tls-ca-cert-file {ca_cert_file}");
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates("tls-ca-cert-file", ca_cert_file)? {
                roots
                    .add(certificate)
                    .map_err(|error| SettingsError::from_cause(error).of(&parameter))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match required {
                TlsClients::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| SettingsError::from_cause(error).of(&parameter))?,
            )
        }
    };
    let config = builder.with_single_cert(certificates, key);
    let config = config.map_err(|error| {
        SettingsError::from_cause(error).of(format_args!("tls-cert-file {cert_file}"))
    })?;
    Ok(Some(Arc::new(config)))
}

fn certificates(
    parameter: &str,
    file: &str,
) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let read = CertificateDer::pem_file_iter(Path::new(file)).and_then(Iterator::collect);
    let certificates: Vec<_> = read
        .map_err(|error| SettingsError::from_cause(error).of(format_args!("{parameter} {file}")))?;
    match certificates.is_empty() {
        true => Err(SettingsError::new(format!(
            "{parameter} {file}: there is no certificate in the file"
        ))),
        false => Ok(certificates),
    }
}

/// Returns whether the value of `tls-protocols` allows TLS 1.2.
pub(crate) fn allows_tls12(protocols: &str) -> bool {
    versions(protocols).is_ok_and(|versions| versions.contains(&&TLS12))
}

/// Parses the value of `tls-protocols`: an empty text is all versions.
fn versions(text: &str) -> Result<Vec<&'static SupportedProtocolVersion>, SettingsError> {
    let mut versions = Vec::new();
    for word in text.split_whitespace() {
        versions.push(match word.to_ascii_lowercase().as_str() {
            "tlsv1.2" => &TLS12,
            "tlsv1.3" => &TLS13,
            _ => {
                return Err(SettingsError::new(format!(
                    "tls-protocols: {word:?} is not TLSv1.2 or TLSv1.3"
                )));
            }
        });
    }
    match versions.is_empty() {
        true => Ok(vec![&TLS13, &TLS12]),
        false => Ok(versions),
    }
}
