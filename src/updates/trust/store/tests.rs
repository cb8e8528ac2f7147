use super::*;

fn opened(folder: &Path) -> (TrustedMetadataStore, Option<String>) {
    match TrustedMetadataStore::open(folder).unwrap() {
        OpenedStore::Whole(store) => (store, None),
        OpenedStore::Damaged(store, reason) => (store, Some(reason)),
    }
}

fn metadata(version: u64) -> String {
    format!("{{\"signed\": {{\"version\": {version}, \"é\": \"\\n\"}},\n \"signatures\": []}}")
}

/// Fills a store, and returns the bytes of its file.
fn filled(folder: &Path) -> Vec<u8> {
    let (store, damage) = opened(folder);
    assert_eq!(damage, None);
    store.store("root.json", metadata(3).as_bytes()).unwrap();
    store.store("7.snapshot.json", b"stored a second time by the library").unwrap();
    store.store("root_history/3.root.json", metadata(3).as_bytes()).unwrap();
    store.store("fleet.json", metadata(41).as_bytes()).unwrap();
    store.prove(1_800_000_000_000).unwrap();
    std::fs::read(folder.join("tuf/trusted.json")).unwrap()
}

#[test]
fn what_was_stored_is_there_again_and_nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let (store, damage) = opened(folder.path());
    assert_eq!(damage, None);
    assert_eq!(store.load("fleet.json").unwrap(), Some(metadata(41).into_bytes()));
    assert_eq!(store.load("7.snapshot.json").unwrap(), None);
    let versions = [("fleet".to_owned(), 41), ("root".to_owned(), 3)];
    assert_eq!(store.versions(), versions.into());
    assert_eq!(store.proven_ms(), 1_800_000_000_000);
    let mode = std::fs::metadata(folder.path().join("tuf/trusted.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn every_changed_byte_and_every_cut_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let content = filled(folder.path());
    assert!(decode(&content).is_ok());
    for at in 0..content.len() {
        assert!(decode(&content[..at]).is_err(), "cut at {at}");
        for bit in 0..8 {
            let mut changed = content.clone();
            changed[at] ^= 1 << bit;
            assert!(decode(&changed).is_err(), "bit {bit} of byte {at}");
        }
        let mut longer = content.clone();
        longer.insert(at, b' ');
        assert!(decode(&longer).is_err(), "a space at {at}");
    }
    assert!(decode(&encode(BTreeMap::new()).unwrap()).is_err());
}

#[test]
fn a_file_that_cannot_be_read_now_stays_for_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let (file, whole) = (folder.path().join("tuf/trusted.json"), folder.path().join("whole"));
    durable::rename(&file, &whole).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(matches!(TrustedMetadataStore::open(folder.path()), Err(TrustError::Store { .. })));
    std::fs::remove_dir(&file).unwrap();
    durable::rename(&whole, &file).unwrap();
    let (store, damage) = opened(folder.path());
    assert_eq!((store.versions().len(), damage), (2, None));
}

#[test]
fn a_file_that_is_gone_is_an_alarm_and_none_yet_is_not() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(opened(folder.path()).1, None);
    filled(folder.path());
    std::fs::remove_file(folder.path().join("tuf/trusted.json")).unwrap();
    for _ in 0..2 {
        assert!(opened(folder.path()).1.unwrap().ends_with("tuf/trusted.json is gone"));
    }
    TrustedMetadataStore::reset(folder.path()).unwrap();
    assert_eq!(opened(folder.path()).1, None);
    TrustedMetadataStore::reset(folder.path()).unwrap();
}

#[test]
fn a_store_that_lost_its_marker_makes_it_anew() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    std::fs::remove_file(folder.path().join("tuf/trusted.marker")).unwrap();
    assert_eq!(opened(folder.path()).1, None);
    std::fs::remove_file(folder.path().join("tuf/trusted.json")).unwrap();
    assert!(opened(folder.path()).1.is_some());
}

#[test]
fn damaged_files_are_set_aside_each_under_a_name_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=3 {
        filled(folder.path());
        let garbage = format!("garbage {number}");
        durable::replace(&folder.path().join("tuf/trusted.json"), garbage.as_bytes()).unwrap();
        assert!(opened(folder.path()).1.is_some());
        let aside = folder.path().join(format!("tuf/trusted.json.set-aside-{number}"));
        assert_eq!(std::fs::read_to_string(aside).unwrap(), garbage);
        TrustedMetadataStore::reset(folder.path()).unwrap();
    }
}

#[test]
fn an_older_root_does_not_take_the_place_of_the_trusted_one() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let (store, _) = opened(folder.path());
    assert!(store.store("root.json", metadata(2).as_bytes()).is_err());
    assert!(store.take_failure().unwrap().to_string().contains("older than the root"));
    assert!(store.take_failure().is_none());
    assert_eq!(store.conflict(metadata(3).as_bytes()), None);
    assert_eq!(store.conflict(metadata(3).replace('é', "e").as_bytes()), Some(3));
}
