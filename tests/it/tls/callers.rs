//! Certificates of callers: which are valid, what they permit, and for how long.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ledge::audit::record::ActorKind;
use ledge::audit_event::AuditEvent;
use rcgen::{SerialNumber, date_time_ymd};
use rustls::HandshakeKind;

use super::ended;
use crate::audit::{records, stop};
use crate::certificates::{Authority, Identity};
use crate::client::Client;
use crate::daemon::{TestRoot, write};
use crate::tls_kit::{TlsClient, with_certificate};

/// A box that wants certificates of this authority, and where its list of revoked ones belongs.
fn judging(authority: &Authority) -> (TestRoot, PathBuf) {
    let root = with_certificate(TestRoot::new(), authority)
        .set("http.tls.client_certificates=required")
        .set("http.tls.client_ca_file=\"clients.pem\"")
        .set("http.tls.client_crl_file=\"clients.crl\"");
    write(&root.folder.path().join("clients.pem"), authority.pem().as_bytes());
    let list = root.folder.path().join("clients.crl");
    (root, list)
}

/// A caller with this serial number in its certificate.
fn client(authority: &Authority, serial: u64) -> TlsClient {
    let identity = authority.issue_with("till", |params| params.serial_number = Some(SerialNumber::from(serial)));
    TlsClient::new(authority.pem(), Some(&identity))
}

#[test]
fn client_certificates_are_judged_by_their_authority_their_time_and_what_was_revoked() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let good = ours.issue("cashier");
    let foreign = theirs.issue("cashier");
    let expired = ours.issue_with("cashier", |params| {
        params.not_before = date_time_ymd(2024, 1, 1);
        params.not_after = date_time_ymd(2025, 1, 1);
    });
    let early = ours.issue_with("cashier", |params| params.not_before = date_time_ymd(2990, 1, 1));
    let revoked = ours.issue_with("cashier", |params| params.serial_number = Some(SerialNumber::from(4711)));
    let server_only = ours.issue_with("cashier", |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let bad = [&foreign, &expired, &early, &revoked, &server_only];
    // A client that is not asked for a certificate shows none, and is served.
    for (choice, without, with_bad) in [("none", true, true), ("optional", true, false), ("required", false, false)] {
        let root = with_certificate(TestRoot::new(), &ours);
        write(&root.folder.path().join("clients.pem"), ours.pem().as_bytes());
        write(&root.folder.path().join("clients.crl"), ours.revoke(&[4711]).as_bytes());
        let root = match choice {
            "none" => root,
            _ => root
                .set("http.tls.client_ca_file=\"clients.pem\"")
                .set("http.tls.client_crl_file=\"clients.crl\"")
                .set(&format!("http.tls.client_certificates={choice}")),
        };
        let daemon = root.start();
        let served = |identity| TlsClient::new(ours.pem(), identity).is_served(daemon.address);
        assert_eq!(served(None), without, "{choice}");
        assert!(served(Some(&good)), "{choice}");
        for (at, identity) in bad.iter().enumerate() {
            assert_eq!(served(Some(identity)), with_bad, "{choice}, {at}");
        }
        let refused = [5, 6][usize::from(choice == "required")];
        assert_eq!(ended(&daemon, "refused"), if choice == "none" { 0 } else { refused }, "{choice}");
        let root = stop(daemon);
        let mut denied = BTreeMap::<String, u64>::new();
        for record in records(&root, 1) {
            if let AuditEvent::AuthenticationFailed { cause, others } = record.event {
                assert_eq!(record.actor.kind, ActorKind::Ip, "{cause}");
                *denied.entry(cause.to_string()).or_default() += 1 + others;
            }
        }
        let expected: &[(&str, u64)] = match choice {
            "none" => &[],
            "optional" => &[("certificate", 5)],
            _ => &[("certificate", 5), ("no_certificate", 1)],
        };
        let expected = expected.iter().map(|(cause, count)| ((*cause).to_owned(), *count)).collect();
        assert_eq!(denied, expected, "{choice}");
    }
}

#[test]
fn a_client_certificate_opens_what_its_name_is_listed_for() {
    let authority = Authority::new();
    let root = with_certificate(TestRoot::new().models(&["add_sub"]), &authority)
        .set("http.tls.client_certificates=optional")
        .set("http.tls.client_ca_file=\"clients.pem\"")
        .set("access.loopback=[]")
        .set("access.certificates=[{name=\"cashier\", roles=[\"viewer\"]}, {name=\"spiffe://shop/till-7\", roles=[\"viewer\"]}]");
    write(&root.folder.path().join("clients.pem"), authority.pem().as_bytes());
    let daemon = root.start();
    let status = |identity: Option<&Identity>| {
        let client = TlsClient::new(authority.pem(), identity).client(daemon.address);
        client.unwrap().get("/v2/models/add_sub").status
    };
    let cashier = authority.issue("cashier");
    assert_eq!(status(Some(&cashier)), 200);
    // A session that is resumed would carry the certificate past its revocation.
    let client = TlsClient::new(authority.pem(), Some(&cashier));
    for _ in 0..2 {
        let stream = client.connect(daemon.address).unwrap();
        assert_eq!(stream.conn.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(Client::over(stream).get("/v2/models/add_sub").status, 200);
    }
    let by_uri = authority.issue_with("somebody", |params| {
        params.subject_alt_names = vec![rcgen::SanType::URI("spiffe://shop/till-7".try_into().unwrap())];
    });
    assert_eq!(status(Some(&by_uri)), 200);
    assert_eq!(status(Some(&authority.issue("stranger"))), 403);
    assert_eq!(status(None), 401);
}

#[test]
fn a_certificate_that_is_revoked_later_ends_the_connection_that_it_has() {
    let authority = Authority::new();
    let (root, list) = judging(&authority);
    write(&list, authority.revoke(&[]).as_bytes());
    let daemon = root.start();
    let (revoked, other) = (client(&authority, 1), client(&authority, 2));
    let mut connection = revoked.client(daemon.address).unwrap();
    let mut stays = other.client(daemon.address).unwrap();
    assert_eq!((connection.get("/v2").status, stays.get("/v2").status), (200, 200));
    write(&list, authority.revoke(&[1]).as_bytes());
    daemon.signal("HUP");
    // No request is needed: an idle connection ends at once.
    assert!(connection.is_closed());
    assert!(!revoked.is_served(daemon.address));
    assert!(other.is_served(daemon.address));
    assert_eq!(stays.get("/v2").status, 200, "the connection of another");
}

#[test]
fn a_long_list_of_revoked_certificates_counts_to_its_end_and_one_that_is_none_is_named() {
    let authority = Authority::new();
    let (root, list) = judging(&authority);
    let long = authority.revoke(&(1..=40_000).collect::<Vec<_>>());
    assert!(long.len() > 1 << 20);
    write(&list, long.as_bytes());
    let daemon = root.start();
    assert!(!client(&authority, 40_000).is_served(daemon.address));
    assert!(client(&authority, 40_001).is_served(daemon.address));
    let nonsense = [0x30, 3, 2, 1, 7];
    write(&list, &nonsense);
    daemon.signal("HUP");
    let line = daemon.wait_for_event("tls.files_rejected");
    assert!(line["error"].as_str().unwrap().contains("clients.crl"), "{line}");
}
