//! Tests against a real TLS server on loopback, with certificates made here.

use std::io::Write;

use ledge_base::clock::{self, ClockFloor};
use ledge_base::secret::SecretFile;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tokio_rustls::server::TlsStream as ServerStream;

use super::super::tls::CertificateTime;
use super::*;

/// A CA, and the folder of its files.
pub(super) struct TestAuthority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, as PEM.
pub(super) struct Identity {
    certificate: String,
    key: String,
}

impl TestAuthority {
    pub(super) fn new() -> Self {
        Self::named("Test CA")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { folder: tempfile::tempdir().unwrap(), issuer: Issuer::new(params, key), pem }
    }

    pub(super) fn issue(&self, name: &str) -> Identity {
        self.issue_with(name, |_| {})
    }

    fn issue_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Identity { certificate: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }

    fn file(&self, name: &str, content: &str) -> SecretFile {
        let path = self.folder.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(content.as_bytes()).unwrap();
        SecretFile::Path(path)
    }

    fn ca(&self) -> SecretFile {
        self.file("ca.pem", &self.pem)
    }

    pub(super) fn trusting(&self) -> TlsClientSettings {
        TlsClientSettings { ca: Some(self.ca()), ..TlsClientSettings::default() }
    }

    /// As [`Self::trusting`], with a client certificate of `issuer`.
    pub(super) fn with_identity(&self, issuer: &TestAuthority) -> TlsClientSettings {
        let client = issuer.issue("box-7");
        TlsClientSettings {
            certificate: Some(self.file("client.pem", &client.certificate)),
            key: Some(self.file("client.key", &client.key)),
            ..self.trusting()
        }
    }
}

/// A server with `identity`, which asks for client certificates of `clients` if there is one.
fn server(
    identity: &Identity,
    clients: Option<&TestAuthority>,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsAcceptor {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    Arc::new(builder.with_single_cert(chain, key).unwrap()).into()
}

pub(super) fn modern(identity: &Identity, clients: Option<&TestAuthority>) -> TlsAcceptor {
    server(identity, clients, &[&version::TLS13])
}

type Links = (EgressReader, EgressWriter);

/// Both ends of an attempt to connect to `host`, over a separate listener.
async fn shake(
    host: &str,
    tls: TlsClientSettings,
    server: &TlsAcceptor,
) -> (Result<Links, EgressError>, io::Result<ServerStream<TcpStream>>) {
    let (listener, port) = listener().await;
    let (egress, _) = egress("");
    let to = EgressDestination { host: host.to_owned(), port, tls: Some(tls) };
    tokio::join!(egress.connect(&to, EgressPurpose::Mqtt), async {
        let (stream, _) = listener.accept().await?;
        server.accept(stream).await
    })
}

#[track_caller]
fn assert_says<T>(result: Result<T, EgressError>, expected: &str) {
    let error = result.err().expect("this must not connect").to_string();
    assert!(error.contains(expected) && !error.contains('\n'), "{error}");
}

#[tokio::test]
async fn a_private_ca_is_trusted_when_it_is_named() {
    let authority = TestAuthority::new();
    for (host, versions) in [("localhost", &version::TLS13), ("127.0.0.1", &version::TLS12)] {
        let acceptor = server(&authority.issue(host), None, &[versions]);
        let (link, served) = shake(host, authority.trusting(), &acceptor).await;
        let ((mut reader, mut writer), mut served) = (link.unwrap(), served.unwrap());
        put(&mut writer, EgressContent::Answer, b"ping").unwrap();
        writer.flush().await.unwrap();
        let mut read = [0; 4];
        served.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"ping");
        served.write_all(b"pong").await.unwrap();
        served.flush().await.unwrap();
        let mut buffer = BytesMut::new();
        assert_eq!(reader.read(&mut buffer).await.unwrap(), 4);
        // The other side sees an orderly end, and no error.
        writer.close().await;
        assert_eq!(served.read(&mut read).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_foreign_ca_is_refused_by_the_name_of_the_file() {
    let own = TestAuthority::new();
    // The second one is as if the CA had been created again: its name is the same.
    for foreign in [TestAuthority::named("Another CA"), TestAuthority::new()] {
        let acceptor = modern(&foreign.issue("localhost"), None);
        let (link, served) = shake("localhost", own.trusting(), &acceptor).await;
        assert!(served.is_err());
        assert_says(link, &format!("the server's certificate is not signed by a CA in {};", own.ca()));
    }
    let acceptor = modern(&own.issue("localhost"), None);
    let (link, _) = shake("localhost", TlsClientSettings::default(), &acceptor).await;
    let error = link.unwrap_err();
    let trusts_nobody_here =
        matches!(error, EgressError::Tls { error: TlsError::Untrusted { .. } | TlsError::NoSystemCa, .. });
    assert!(trusts_nobody_here, "{error}");
}

#[tokio::test]
async fn a_renewed_file_counts_at_the_next_connection() {
    let (old, new) = (TestAuthority::new(), TestAuthority::new());
    let settings = old.trusting();
    let acceptor = modern(&new.issue("localhost"), None);
    assert!(shake("localhost", settings.clone(), &acceptor).await.0.is_err());
    assert_eq!(settings.ca.as_ref(), Some(&old.file("ca.pem", &new.pem)));
    shake("localhost", settings, &acceptor).await.0.unwrap();
}

#[tokio::test]
async fn a_certificate_for_another_name_or_another_time_is_refused() {
    let authority = TestAuthority::new();
    let refused = async |identity: Identity, expected: &str| {
        let (link, _) = shake("localhost", authority.trusting(), &modern(&identity, None)).await;
        assert_says(link, expected);
    };
    let other = "the server's certificate is for broker.example, not for localhost";
    refused(authority.issue("broker.example"), other).await;
    let nameless = |params: &mut CertificateParams| params.subject_alt_names.clear();
    refused(authority.issue_with("x", nameless), "is for no name at all (no subjectAltName), not for localhost").await;
    let old = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    refused(authority.issue_with("localhost", old), "has expired, or the clock of this machine").await;
    let early = |params: &mut CertificateParams| params.not_before = rcgen::date_time_ymd(4000, 1, 1);
    refused(authority.issue_with("localhost", early), "is not valid yet, or the clock").await;
    let ca = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    refused(authority.issue_with("localhost", ca), "it is a CA certificate; have that CA issue one for the server")
        .await;
}

#[tokio::test]
async fn a_clock_at_1970_is_not_believed_when_it_is_known_to_be_later() {
    static UNAWARE: ClockFloor = ClockFloor::new();
    static AWARE: ClockFloor = ClockFloor::new();
    let authority = TestAuthority::new();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let shaken = async |from_ms: u64, floor: &'static ClockFloor| {
        let from = epoch + Duration::from_millis(from_ms);
        let identity = authority.issue_with("localhost", |params| params.not_before = from);
        let acceptor = modern(&identity, None);
        let (near, far) = tokio::io::duplex(1 << 16);
        let to = HostPort::new("localhost", 8883).unwrap();
        let client =
            TlsClient::read_at(&authority.trusting(), &to, CertificateTime { system_ms: || 0, floor }).unwrap();
        let (connected, _) = tokio::join!(client.connect(near), acceptor.accept(far));
        connected.map(drop)
    };
    let day_after = clock::built_ms() + 86_400_000;
    // A certificate that was there before this was built needs no proof.
    shaken(clock::built_ms(), &UNAWARE).await.unwrap();
    let early = shaken(day_after, &UNAWARE).await.unwrap_err();
    assert!(matches!(early, TlsError::Dated { when: "is not valid yet" }), "{early}");
    AWARE.raise(day_after);
    shaken(day_after, &AWARE).await.unwrap();
}

#[tokio::test]
async fn a_client_certificate_is_shown_when_the_server_wants_one() {
    let authority = TestAuthority::new();
    for versions in [&version::TLS13, &version::TLS12] {
        let acceptor = server(&authority.issue("localhost"), Some(&authority), &[versions]);
        let (link, served) = shake("localhost", authority.with_identity(&authority), &acceptor).await;
        link.unwrap();
        assert_eq!(served.unwrap().get_ref().1.peer_certificates().map(<[_]>::len), Some(1));
    }
}

#[tokio::test]
async fn a_client_certificate_that_is_missing_or_foreign_is_told_at_the_first_answer() {
    let (authority, foreign) = (TestAuthority::new(), TestAuthority::new());
    let acceptor = modern(&authority.issue("localhost"), Some(&authority));
    let refused = format!(
        "the server does not accept the client certificate in {}/client.pem",
        authority.folder.path().display()
    );
    let cases = [
        (authority.trusting(), "the server wants a client certificate: set `certificate_file` and `key_file`"),
        (authority.with_identity(&foreign), &refused),
    ];
    for (settings, expected) in cases {
        // In TLS 1.3 the client finishes the handshake before the server has seen its certificate.
        let (link, served) = shake("localhost", settings, &acceptor).await;
        assert!(served.is_err());
        let (mut reader, _writer) = link.unwrap();
        let error = reader.read(&mut BytesMut::new()).await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let old = server(&authority.issue("localhost"), Some(&authority), &[&version::TLS12]);
    assert_says(shake("localhost", authority.with_identity(&foreign), &old).await.0, &refused);
    assert!(shake("localhost", authority.trusting(), &old).await.0.is_err());
}

#[tokio::test]
async fn a_server_without_tls_is_told_in_words() {
    let authority = TestAuthority::new();
    let answers: [(&[u8], &str); 2] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server does not speak TLS on this port"),
        (b"", "does it speak TLS"),
    ];
    for (answer, expected) in answers {
        let (listener, port) = listener().await;
        let (egress, _) = egress("");
        let to = EgressDestination { host: "localhost".into(), port, tls: Some(authority.trusting()) };
        let (link, ()) = tokio::join!(egress.connect(&to, EgressPurpose::Mqtt), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut BytesMut::new()).await.unwrap();
            stream.write_all(answer).await.unwrap();
        });
        assert_says(link, expected);
        let figures = egress.statistics();
        assert_eq!((figures[0].connections, figures[0].failures), (1, 1));
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let (listener, port) = listener().await;
    let audit = AuditSink::to_nowhere();
    let egress = Egress::with_timeout(&EgressConfig::default(), audit, Duration::from_secs(2));
    let authority = TestAuthority::new();
    let to = EgressDestination { host: "127.0.0.1".into(), port, tls: Some(authority.trusting()) };
    let (link, _open) = tokio::join!(egress.connect(&to, EgressPurpose::Mqtt), listener.accept());
    assert_says(link, "the TLS handshake timed out");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_and_nothing_is_connected() {
    let authority = TestAuthority::new();
    let good = authority.with_identity(&authority);
    let (missing, empty) = (SecretFile::Path("/nonexistent/ca.pem".into()), authority.file("empty", "no PEM"));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let broken = authority.file("broken", broken);
    let other = authority.file("other.key", &authority.issue("x").key);
    let cases = [
        (
            TlsClientSettings { ca: Some(missing.clone()), ..good.clone() },
            "/nonexistent/ca.pem cannot be read: No such file",
        ),
        (TlsClientSettings { ca: Some(empty.clone()), ..good.clone() }, "empty holds no certificate in PEM format"),
        (
            TlsClientSettings { ca: Some(broken.clone()), ..good.clone() },
            "broken holds a certificate that cannot be used",
        ),
        (TlsClientSettings { certificate: Some(missing), ..good.clone() }, "/nonexistent/ca.pem cannot be read"),
        (
            TlsClientSettings { certificate: Some(broken), ..good.clone() },
            "broken holds a certificate that cannot be used",
        ),
        (TlsClientSettings { key: Some(empty), ..good.clone() }, "empty holds no private key in PEM format"),
        (TlsClientSettings { key: Some(other), ..good.clone() }, "other.key is not that of the certificate in "),
        (TlsClientSettings { key: None, ..good.clone() }, "set both `certificate_file` and `key_file`, or neither"),
        (
            TlsClientSettings { certificate: None, ..good.clone() },
            "set both `certificate_file` and `key_file`, or neither",
        ),
    ];

    let (egress, mut events) = egress("");
    for (settings, expected) in cases {
        let to = EgressDestination { host: "localhost".into(), port: 1, tls: Some(settings) };
        assert_says(egress.connect(&to, EgressPurpose::Mqtt).await, expected);
    }
    assert!(events.try_next().is_none());
    let to = EgressDestination { host: "localhost".into(), port: 1, tls: Some(good) };
    assert_says(egress.connect(&to, EgressPurpose::Mqtt).await, "localhost:1 refuses the connection");
}

#[tokio::test]
async fn a_cancelled_flush_loses_nothing_over_tls_either() {
    let authority = TestAuthority::new();
    let acceptor = modern(&authority.issue("127.0.0.1"), None);
    let listener = narrow_listener();
    let port = listener.local_addr().unwrap().port();
    let (egress, _) = egress("");
    let to = EgressDestination { host: "127.0.0.1".into(), port, tls: Some(authority.trusting()) };
    let (link, served) = tokio::join!(egress.connect(&to, EgressPurpose::Mqtt), async {
        let (stream, _) = listener.accept().await?;
        acceptor.accept(stream).await
    });
    every_flush_cancelled(&egress, link.unwrap().1, served.unwrap()).await;
}

#[tokio::test]
async fn a_pinned_certificate_is_accepted_whatever_it_says_and_no_other_is() {
    // As cameras sign their own: a CA, for no name, long expired.
    let own = TestAuthority::new();
    let odd = |params: &mut CertificateParams| {
        params.subject_alt_names.clear();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    };
    let identity = own.issue_with("x", odd);
    let file = CertificatePin::File(own.file("camera.pem", &identity.certificate));
    let pinning =
        |pin: &CertificatePin| TlsClientSettings { pinned: Some(pin.clone()), ..TlsClientSettings::default() };
    for versions in [&version::TLS13, &version::TLS12] {
        let (link, served) = shake("localhost", pinning(&file), &server(&identity, None, &[versions])).await;
        assert!(link.is_ok() && served.is_ok());
    }

    // The refusal says the fingerprint, which can be pinned in turn.
    let other = own.issue("localhost");
    let (link, _) = shake("localhost", pinning(&file), &modern(&other, None)).await;
    let refusal = link.unwrap_err().to_string();
    let presented = refusal.split("SHA-256 is ").nth(1).unwrap().split(':').next().unwrap();
    let pin = CertificatePin::Sha256(presented.parse().unwrap());
    shake("localhost", pinning(&pin), &modern(&other, None)).await.0.unwrap();
    assert_says(shake("localhost", pinning(&pin), &modern(&identity, None)).await.0, "is not the pinned one");
}
