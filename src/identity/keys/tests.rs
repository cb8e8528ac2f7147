use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn new(name: &str) -> NewApiKey {
    NewApiKey {
        name: name.parse().unwrap(),
        roles: vec![Role::Infer, Role::Viewer, Role::Infer],
        models: Some(vec!["m".parse().unwrap()]),
        feature_views: Some(ViewScope::only(vec!["customers".parse().unwrap()])),
        expires_ms: Some(7),
        max_rate: CallRate::new(2.5).unwrap(),
        max_concurrent: 3,
    }
}

#[test]
fn a_key_is_kept_as_a_hash_that_only_its_owner_may_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(&folder.path().join("state"));
    assert_eq!(store.list().unwrap(), []);
    assert!(!folder.path().join("state").exists(), "looking leaves nothing behind");
    let (key, record) = store.create(&new("till"), 5).unwrap();
    assert_eq!(store.list().unwrap(), std::slice::from_ref(&record));
    assert_eq!((record.roles.as_slice(), record.created_ms), (&[Role::Viewer, Role::Infer][..], 5));
    assert_eq!(record.blake3, SecretHash(key.hash()));
    let text = std::fs::read_to_string(store.path()).unwrap();
    assert!(text.contains(&key.id().to_string()) && !text.contains(&key.reveal()[15..]), "{text}");
    assert_eq!(std::fs::metadata(store.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_name_is_taken_for_good_and_a_key_has_a_role() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(folder.path());
    let (key, _) = store.create(&new("till"), 1).unwrap();
    assert!(matches!(store.create(&new("till"), 1), Err(ApiKeysError::NameTaken { .. })));
    assert_eq!(store.revoke(&key.id().to_string(), 2).unwrap().revoked_ms, Some(2));
    assert_eq!(store.revoke("till", 3).unwrap().revoked_ms, Some(2), "when it was revoked first");
    assert!(matches!(store.create(&new("till"), 4), Err(ApiKeysError::NameTaken { .. })));
    assert!(matches!(store.revoke("other", 4), Err(ApiKeysError::Unknown { .. })));
    assert!(matches!(store.create(&NewApiKey { roles: Vec::new(), ..new("none") }, 4), Err(ApiKeysError::NoRole)));
    // A name that looks like the id of another key takes precedence.
    let (_, imitator) = store.create(&new(&key.id().to_string()), 5).unwrap();
    assert_eq!(store.revoke(&key.id().to_string(), 6).unwrap().id, imitator.id);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
fn a_damaged_store_is_an_error_that_names_it_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(folder.path());
    store.create(&new("till"), 1).unwrap();
    store.create(&new("second"), 1).unwrap();
    let good = std::fs::read_to_string(store.path()).unwrap();
    let damages = [
        String::new(),
        "{}".into(),
        good[..good.len() / 2].to_owned(),
        good.replace("\"version\": 1", "\"version\": 2"),
        good.replace("second", "till"),
        good.replace("\"infer\"", "\"emperor\""),
        good.replace("\"created_ms\"", "\"made_ms\""),
        good.replace("\"name\": \"till\"", "\"name\": \"a b\""),
        "x".repeat(5 << 20),
    ];
    for damage in damages {
        std::fs::write(store.path(), &damage).unwrap();
        for refused in [store.list().unwrap_err(), store.create(&new("third"), 1).unwrap_err()] {
            assert!(matches!(refused, ApiKeysError::Damaged { .. }), "{refused}");
            assert!(refused.to_string().contains("keys.json"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(store.path()).unwrap(), damage);
    }
}

#[test]
fn a_store_that_others_may_write_lets_nobody_in() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(folder.path());
    store.create(&new("till"), 1).unwrap();
    std::fs::set_permissions(store.path(), std::fs::Permissions::from_mode(0o620)).unwrap();
    assert!(matches!(store.list(), Err(ApiKeysError::Exposed { .. })));
}

#[test]
fn a_full_store_takes_no_key_and_every_key_in_it_can_still_be_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(folder.path());
    let models = (0..8000).map(|number| format!("{number}-{}", "m".repeat(100)).parse().unwrap()).collect::<Vec<_>>();
    let large = |number: usize| NewApiKey { models: Some(models.clone()), ..new(&format!("till-{number}")) };
    let refused = (0..10).find_map(|number| store.create(&large(number), 1).err()).unwrap();
    assert!(matches!(refused, ApiKeysError::Full { .. }), "{refused}");
    let keys = store.list().unwrap();
    assert!(!keys.is_empty());
    for key in &keys {
        store.revoke(key.name.as_str(), 2).unwrap();
    }
    assert!(store.list().unwrap().iter().all(|key| key.revoked_ms.is_some()));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "no command line writes such a store")]
fn a_store_that_could_not_be_read_again_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(folder.path());
    store.create(&NewApiKey { models: Some(vec!["m".parse().unwrap(); 40_000]), ..new("till") }, 1).unwrap();
    // Compact JSON has room for more than the indented form.
    let mut document: serde_json::Value = serde_json::from_slice(&std::fs::read(store.path()).unwrap()).unwrap();
    document["keys"][0]["models"] = vec!["m"; 1_000_000].into();
    let compact = document.to_string();
    assert!(compact.len() < file::STORE_BYTES_MAX);
    std::fs::write(store.path(), &compact).unwrap();
    assert!(matches!(store.revoke("till", 2), Err(ApiKeysError::Full { .. })));
    assert_eq!(std::fs::read_to_string(store.path()).unwrap(), compact);
}

#[test]
fn command_lines_at_the_same_time_lose_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(folder.path());
    std::thread::scope(|scope| {
        for number in 0..8 {
            let store = &store;
            scope.spawn(move || store.create(&new(&format!("till-{number}")), 1).unwrap());
        }
    });
    assert_eq!(store.list().unwrap().len(), 8);
}

#[test]
fn a_changed_file_has_another_stamp() {
    let folder = tempfile::tempdir().unwrap();
    let store = ApiKeyStore::new(folder.path());
    assert_eq!(KeyFileStamp::of(store.path()).unwrap(), None);
    store.create(&new("till"), 1).unwrap();
    let first = KeyFileStamp::of(store.path()).unwrap();
    assert_eq!(KeyFileStamp::of(store.path()).unwrap(), first);
    store.revoke("till", 1).unwrap();
    assert_ne!(KeyFileStamp::of(store.path()).unwrap(), first);
}
