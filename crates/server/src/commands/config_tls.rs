//! Parameters of TLS, for CONFIG GET and CONFIG SET.

use super::text::quote;
use crate::settings::{TlsClients, TlsSettings};

const CERT: &str = "tls-cert-file";
const KEY: &str = "tls-key-file";
const CA_CERT: &str = "tls-ca-cert-file";
pub(super) const CLIENTS: &str = "tls-auth-clients";
pub(super) const PROTOCOLS: &str = "tls-protocols";

/// Values of `tls-auth-clients`.
pub(super) const CLIENT_WORDS: &[&str] = &["no", "yes", "optional"];

/// Whether `name` is a parameter of TLS that CONFIG SET changes.
pub(super) fn is_tls(name: &str) -> bool {
    [CERT, KEY, CA_CERT, CLIENTS, PROTOCOLS].contains(&name)
}

/// The parameters with their values.
pub(super) fn values(settings: &TlsSettings) -> [(&'static str, String); 5] {
    [
        (CERT, settings.cert_file.clone()),
        (KEY, settings.key_file.clone()),
        (CA_CERT, settings.ca_cert_file.clone()),
        (CLIENTS, settings.clients.name().to_owned()),
        (PROTOCOLS, settings.protocols.clone()),
    ]
}

/// Changes a parameter in `settings`. Returns whether its value is possible; the files are not read.
pub(super) fn set(settings: &mut TlsSettings, name: &str, value: &[u8]) -> bool {
    let value = quote(value, usize::MAX);
    let text = || String::from_utf8_lossy(value).into_owned();
    match name {
        CERT => settings.cert_file = text(),
        KEY => settings.key_file = text(),
        CA_CERT => settings.ca_cert_file = text(),
        PROTOCOLS => settings.protocols = text(),
        _ => {
            let is = |clients: &TlsClients| value.eq_ignore_ascii_case(clients.name().as_bytes());
            let Some(clients) = TlsClients::ALL.into_iter().find(is) else {
                return false;
            };
            settings.clients = clients;
        }
    }
    true
}
