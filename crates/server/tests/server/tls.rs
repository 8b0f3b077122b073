//! TLS connections: versions, certificates of clients, large values, broken clients, and new certificates.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use farbank_server::{ServerOptions, TlsClients, TlsSettings, check_tls};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::harness::{Running, request, wait_until};

/// The path of a file with a certificate or a key.
fn file(name: &str) -> String {
    format!("{}/tests/support/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn settings(clients: TlsClients) -> TlsSettings {
    TlsSettings {
        cert_file: file("server.crt"),
        key_file: file("server.key"),
        ca_cert_file: file("ca.crt"),
        clients,
        protocols: String::new(),
    }
}

fn running(tls: TlsSettings) -> Running {
    Running::with(ServerOptions {
        workers: 1,
        tls,
        ..ServerOptions::default()
    })
}

/// Versions of the protocol that a client offers.
type Versions = &'static [&'static SupportedProtocolVersion];

/// What a client is configured with.
struct ClientSetup {
    versions: Versions,
    /// The authority that must have signed the server's certificate.
    root: &'static str,
    /// The client's certificate.
    own: Option<&'static str>,
}

static OLD: Versions = &[&TLS12];
static NEW: Versions = &[&TLS13];
static BOTH: Versions = &[&TLS13, &TLS12];

const ANONYMOUS: ClientSetup = ClientSetup {
    versions: BOTH,
    root: "ca.crt",
    own: None,
};
const KNOWN: ClientSetup = ClientSetup {
    own: Some("client"),
    ..ANONYMOUS
};

struct Client(StreamOwned<ClientConnection, TcpStream>);

impl Client {
    /// Connects a Redis client.
    fn connect(server: &Running, setup: &ClientSetup) -> Client {
        Client::begin(server.connect_tls_socket(), setup)
    }

    fn begin(socket: TcpStream, setup: &ClientSetup) -> Client {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_file(file(setup.root)).unwrap();
        roots.add(root).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(setup.versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match setup.own {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let own = CertificateDer::from_pem_file(file(&format!("{name}.crt"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![own], key).unwrap()
            }
        };
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        Client(StreamOwned::new(session, socket))
    }

    /// Sends lines of memcached's protocol, and compares the replies.
    #[track_caller]
    fn say(&mut self, lines: &str, expected: &str) {
        self.0.write_all(lines.as_bytes()).unwrap();
        let mut got = vec![0; expected.len()];
        self.0.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), expected);
    }

    /// Sends requests, separated by semicolons, and compares the replies.
    #[track_caller]
    fn ask(&mut self, lines: &str, expected: &str) {
        assert_eq!(self.try_ask(lines, expected.len()).unwrap(), expected);
    }

    /// Sends requests, and returns as many bytes of replies.
    fn try_ask(&mut self, lines: &str, bytes: usize) -> std::io::Result<String> {
        let sent: Vec<u8> = lines.split(';').flat_map(request).collect();
        self.0.write_all(&sent)?;
        let mut got = vec![0; bytes];
        self.0.read_exact(&mut got)?;
        Ok(String::from_utf8(got).unwrap())
    }
}

#[test]
fn clients_of_both_versions_are_served() {
    let server = running(settings(TlsClients::No));
    for versions in [OLD, NEW] {
        let setup = ClientSetup {
            versions,
            ..ANONYMOUS
        };
        let mut client = Client::connect(&server, &setup);
        client.ask("SET k v;GET k;PING", "+OK\r\n$1\r\nv\r\n+PONG\r\n");
        assert_eq!(client.0.conn.protocol_version(), Some(versions[0].version));
        let pings = vec!["PING"; 2_000].join(";");
        client.ask(&pings, &"+PONG\r\n".repeat(2_000));
        let value = "0123456789abcdef".repeat(200_000);
        let len = value.len();
        client.ask(
            &format!("SET big {value};STRLEN big;GET big"),
            &format!("+OK\r\n:{len}\r\n${len}\r\n{value}\r\n"),
        );
        // The replies before the end of the connection arrive, and so does the end.
        client.ask("GET big;QUIT", &format!("${len}\r\n{value}\r\n+OK\r\n"));
        assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
    }
    // Clients without TLS see the same keys, at their port.
    server.connect().ask("GET k", "$1\r\nv\r\n");
}

#[test]
fn messages_arrive_at_a_client_that_only_listens() {
    let server = running(settings(TlsClients::No));
    let mut client = Client::connect(&server, &ANONYMOUS);
    client.ask("SUBSCRIBE c", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    let text = "m".repeat(300_000);
    server.connect().ask(&format!("PUBLISH c {text}"), ":1\r\n");
    let expected = format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$300000\r\n{text}\r\n");
    let mut got = vec![0; expected.len()];
    client.0.read_exact(&mut got).unwrap();
    assert_eq!(got, expected.as_bytes());
}

#[test]
fn the_certificate_of_a_client_is_checked() {
    let ping = |server: &Running, setup: &ClientSetup| {
        Client::connect(server, setup).try_ask("PING", 7).is_ok()
    };
    let foreign = ClientSetup {
        own: Some("other"),
        ..ANONYMOUS
    };
    for (clients, anonymous, other) in [
        (TlsClients::Yes, false, false),
        (TlsClients::Optional, true, false),
        (TlsClients::No, true, true),
    ] {
        let server = running(settings(clients));
        assert!(ping(&server, &KNOWN), "{clients:?}");
        assert_eq!(ping(&server, &ANONYMOUS), anonymous, "{clients:?}");
        assert_eq!(ping(&server, &foreign), other, "{clients:?}");
        let mistrusting = ClientSetup {
            root: "other-ca.crt",
            ..KNOWN
        };
        assert!(!ping(&server, &mistrusting));
    }
}

#[test]
fn tls_protocols_limits_the_versions() {
    let server = running(TlsSettings {
        protocols: "TLSv1.3".into(),
        ..settings(TlsClients::No)
    });
    let old = ClientSetup {
        versions: OLD,
        ..ANONYMOUS
    };
    assert!(Client::connect(&server, &old).try_ask("PING", 7).is_err());
    Client::connect(&server, &ANONYMOUS).ask("PING", "+PONG\r\n");
}

#[test]
fn broken_and_half_open_clients_do_not_disturb_others() {
    let server = running(settings(TlsClients::No));
    let half_open: Vec<_> = (0..50).map(|_| server.connect_tls_socket()).collect();
    // A client without TLS gets an alert, then the end.
    let mut plain = server.connect_tls_socket();
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    let mut alert = Vec::new();
    plain.read_to_end(&mut alert).ok();
    assert!(alert.is_empty() || alert[0] == 21, "{alert:?}");
    // A client that ends in the middle of a handshake.
    let mut torn = server.connect_tls_socket();
    torn.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc]).unwrap();
    drop(torn);
    // A client that ends in the middle of a record, and one that does not read its replies.
    let mut client = Client::connect(&server, &ANONYMOUS);
    client.ask("PING", "+PONG\r\n");
    client.0.sock.write_all(&[23, 3, 3, 1, 0, 1, 2, 3]).unwrap();
    drop(client);
    let mut client = Client::connect(&server, &ANONYMOUS);
    let value = "v".repeat(1_000_000);
    client.ask(&format!("SET big {value}"), "+OK\r\n");
    let gets: Vec<u8> = vec!["GET big"; 40].into_iter().flat_map(request).collect();
    client.0.write_all(&gets).unwrap();
    drop(client);
    // A client that sends a record that was not encrypted with the key.
    let mut client = Client::connect(&server, &ANONYMOUS);
    client.ask("PING", "+PONG\r\n");
    let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
    client.0.sock.write_all(&forged).unwrap();
    assert!(client.0.read(&mut [0]).is_err());
    Client::connect(&server, &ANONYMOUS).ask("PING", "+PONG\r\n");
    server.connect().ask("STRLEN big", ":1000000\r\n");
    drop(half_open);
}

#[test]
fn config_set_reads_new_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let [cert, key] = ["crt", "key"].map(|name| folder.path().join(name));
    let copy = |name: &str| {
        std::fs::copy(file(&format!("{name}.crt")), &cert).unwrap();
        std::fs::copy(file(&format!("{name}.key")), &key).unwrap();
    };
    copy("server");
    let server = running(TlsSettings {
        cert_file: cert.display().to_string(),
        key_file: key.display().to_string(),
        ..settings(TlsClients::No)
    });
    let mut early = Client::connect(&server, &ANONYMOUS);
    early.ask("PING", "+PONG\r\n");
    copy("other");
    Client::connect(&server, &ANONYMOUS).ask("PING", "+PONG\r\n");
    let mut admin = server.connect();
    let set = format!("CONFIG SET tls-cert-file {}", cert.display());
    admin.ask(&set, "+OK\r\n");
    let trusting = ClientSetup {
        root: "other-ca.crt",
        ..ANONYMOUS
    };
    Client::connect(&server, &trusting).ask("PING", "+PONG\r\n");
    assert!(
        Client::connect(&server, &ANONYMOUS)
            .try_ask("PING", 7)
            .is_err()
    );
    early.ask("PING", "+PONG\r\n");
    // What cannot be used changes nothing, not even other parameters of the request.
    let refused = |name| {
        format!(
            "-ERR CONFIG SET failed (possibly related to argument '{name}') - Unable to update TLS configuration. Check \
             server logs.\r\n"
        )
    };
    admin.ask(
        "CONFIG SET tls-cert-file /none timeout 7",
        &refused("tls-cert-file"),
    );
    admin.ask(
        "CONFIG SET tls-protocols TLSv1.1",
        &refused("tls-protocols"),
    );
    admin.ask("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    admin.ask(
        "CONFIG SET tls-auth-clients x",
        "-ERR CONFIG SET failed (possibly related to argument 'tls-auth-clients') - argument(s) must be one of the \
         following: no, yes, optional\r\n",
    );
    Client::connect(&server, &trusting).ask("PING", "+PONG\r\n");
    admin.ask(
        "MULTI;CONFIG SET tls-auth-clients yes;EXEC",
        "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n",
    );
    admin.ask(
        "CONFIG GET tls-auth*",
        "*2\r\n$16\r\ntls-auth-clients\r\n$3\r\nyes\r\n",
    );
    assert!(
        Client::connect(&server, &trusting)
            .try_ask("PING", 7)
            .is_err()
    );
}

#[test]
fn memcached_clients_use_the_same_certificates_and_may_let_them_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let cert = folder.path().join("both.pem");
    let copy = |name: &str| {
        let part = |kind| std::fs::read_to_string(file(&format!("{name}.{kind}"))).unwrap();
        std::fs::write(&cert, part("crt") + &part("key")).unwrap();
    };
    copy("server");
    let server = running(TlsSettings {
        cert_file: cert.display().to_string(),
        key_file: String::new(),
        ..settings(TlsClients::Yes)
    });
    let connect = |setup| Client::begin(server.connect_memcached_tls_socket(), setup);
    let mut client = connect(&KNOWN);
    client.say(
        "set k 7 0 2\r\nvv\r\nget k\r\n",
        "STORED\r\nVALUE k 7 2\r\nvv\r\nEND\r\n",
    );
    let value = "0123456789abcdef".repeat(60_000);
    client.say(
        &format!("set big 0 0 {}\r\n{value}\r\nget big\r\n", value.len()),
        &format!(
            "STORED\r\nVALUE big 0 {}\r\n{value}\r\nEND\r\n",
            value.len()
        ),
    );
    server.connect().ask("GET k", "$2\r\nvv\r\n");
    // A client without a certificate is not served.
    let mut stranger = connect(&ANONYMOUS);
    let served = stranger.0.write_all(b"version\r\n");
    let served = served.and_then(|()| stranger.0.read_exact(&mut [0; 7]));
    assert!(served.is_err());
    wait_until(|| {
        client.0.write_all(b"stats\r\n").unwrap();
        let mut figures = String::new();
        while !figures.ends_with("END\r\n") {
            let mut byte = [0];
            client.0.read_exact(&mut byte).unwrap();
            figures.push(byte[0].into());
        }
        figures.contains("STAT ssl_handshake_errors 1\r\n")
    });

    copy("other");
    client.say("refresh_certs\r\n", "OK\r\n");
    client.say("refresh_certs noreply\r\nmn\r\n", "MN\r\n");
    let setup = ClientSetup {
        root: "other-ca.crt",
        ..KNOWN
    };
    connect(&setup).say("mn\r\n", "MN\r\n");
    // What cannot be used changes nothing.
    std::fs::write(&cert, "nothing").unwrap();
    let error = format!("Error tls-cert-file {}", cert.display());
    client.say("refresh_certs\r\n", &error);
    connect(&setup).say("mn\r\n", "MN\r\n");
}

#[test]
fn without_a_port_for_tls_no_certificate_is_read_again() {
    let server = Running::with(ServerOptions::default());
    let mut client = server.connect_memcached();
    client.send_raw(b"refresh_certs\r\nrefresh_certs noreply\r\n");
    client.expect("Error TLS not enabled\r\nError TLS not enabled\r\n");
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let good = settings(TlsClients::Yes);
    check_tls(&good).unwrap();
    check_tls(&TlsSettings::default()).unwrap();
    let wrong = |change: fn(&mut TlsSettings)| {
        let mut settings = good.clone();
        change(&mut settings);
        check_tls(&settings).unwrap_err().to_string()
    };
    for (error, part) in [
        (
            wrong(|s| s.cert_file = "/none".into()),
            "tls-cert-file /none",
        ),
        (wrong(|s| s.key_file = "/none".into()), "tls-key-file /none"),
        (wrong(|s| s.key_file = file("other.key")), "tls-cert-file"),
        (
            wrong(|s| s.cert_file = file("server.key")),
            "no certificate",
        ),
        (
            wrong(|s| s.ca_cert_file.clear()),
            "tls-ca-cert-file must be specified",
        ),
        (
            wrong(|s| s.protocols = "TLSv1.1".into()),
            "is not TLSv1.2 or TLSv1.3",
        ),
    ] {
        assert!(error.contains(part), "{error}");
    }
}
