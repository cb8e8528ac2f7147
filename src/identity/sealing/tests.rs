use proptest::prelude::*;

use super::*;

const ASSOCIATED: &[u8] = b"here";

#[test]
fn a_rotation_opens_what_the_old_key_sealed_and_seals_under_the_new_one() {
    let old = Sealer::with_keys(&[[1; MASTER_KEY_BYTES]]);
    let both = Sealer::with_keys(&[[2; MASTER_KEY_BYTES], [1; MASTER_KEY_BYTES]]);
    let sealed = old.seal(EncryptionPurpose::Model, ASSOCIATED, b"weights").unwrap();
    assert_eq!(both.open(EncryptionPurpose::Model, ASSOCIATED, &sealed).unwrap(), b"weights");
    let again = both.seal(EncryptionPurpose::Model, ASSOCIATED, b"weights").unwrap();
    assert_eq!(Sealer::key_of(&again), both.current());
    assert_eq!(
        old.open(EncryptionPurpose::Model, ASSOCIATED, &again),
        Err(CipherError::NoKey(both.current().unwrap()))
    );
}

#[test]
fn what_is_sealed_for_one_place_does_not_open_in_another() {
    let sealer = Sealer::with_keys(&[[1; MASTER_KEY_BYTES]]);
    let bytes = sealer.seal(EncryptionPurpose::AuditKey, ASSOCIATED, b"seed").unwrap();
    assert_eq!(sealer.open(EncryptionPurpose::AuditKey, b"there", &bytes), Err(CipherError::Forged));
    assert_eq!(sealer.open(EncryptionPurpose::TagKey, ASSOCIATED, &bytes), Err(CipherError::Forged));
    assert!(matches!(Sealer::none().open(EncryptionPurpose::AuditKey, ASSOCIATED, &bytes), Err(CipherError::NoKey(_))));
    assert_eq!(sealer.open(EncryptionPurpose::AuditKey, ASSOCIATED, b"seed"), Err(CipherError::NotSealed));
    assert_eq!(Sealer::none().seal(EncryptionPurpose::AuditKey, ASSOCIATED, b"seed").unwrap(), b"seed");
}

#[test]
fn a_master_key_is_bytes_or_digits() {
    let parsed = |content: &[u8]| parse(content).map(|keys| keys.to_vec());
    assert_eq!(parsed(&[7; MASTER_KEY_BYTES]), Some(vec![[7; MASTER_KEY_BYTES]]));
    assert_eq!(parsed(format!("{}\n", "07".repeat(MASTER_KEY_BYTES)).as_bytes()), Some(vec![[7; MASTER_KEY_BYTES]]));
    let lines = format!("{}\n{}\r\n\n", "07".repeat(MASTER_KEY_BYTES), "08".repeat(MASTER_KEY_BYTES));
    assert_eq!(parsed(lines.as_bytes()), Some(vec![[7; MASTER_KEY_BYTES], [8; MASTER_KEY_BYTES]]));
    for bad in [
        &b""[..],
        &[7; 31],
        &[7; 33],
        b"+7",
        "é".repeat(32).as_bytes(),
        "0g".repeat(32).as_bytes(),
        b"\n",
        &[b'a'; 32],
        b"a passphrase of 31 and its end..\n",
    ] {
        assert_eq!(parsed(bad), None, "{bad:?}");
    }
}

proptest! {
    #[test]
    fn a_changed_byte_anywhere_is_noticed(plain in proptest::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, bit in 0..8u32) {
        let sealer = Sealer::with_keys(&[[1; MASTER_KEY_BYTES]]);
        let mut sealed = sealer.seal(EncryptionPurpose::Model, ASSOCIATED, &plain).unwrap();
        prop_assert_eq!(sealed.len(), plain.len() + OVERHEAD_BYTES);
        prop_assert_eq!(&sealer.open(EncryptionPurpose::Model, ASSOCIATED, &sealed).unwrap(), &plain);
        let at = at.index(sealed.len());
        sealed[at] ^= 1u8 << bit;
        prop_assert!(sealer.open(EncryptionPurpose::Model, ASSOCIATED, &sealed).is_err());
    }

    #[test]
    fn any_bytes_are_opened_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = Sealer::with_keys(&[[1; MASTER_KEY_BYTES]]).open(EncryptionPurpose::Model, ASSOCIATED, &bytes);
    }
}

fn key_file(folder: &tempfile::TempDir, name: &str, keys: &[u8]) -> SecretFile {
    let path = folder.path().join(name);
    let lines: Vec<_> = keys.iter().map(|key| format!("{}\n", format!("{key:02x}").repeat(MASTER_KEY_BYTES))).collect();
    ledge_base::durable::replace_private(&path, lines.concat().as_bytes()).unwrap();
    SecretFile::Path(path)
}

#[test]
fn every_clone_sees_a_reload_and_what_was_sealed_before_still_opens() {
    let folder = tempfile::tempdir().unwrap();
    let config = EncryptionConfig { master_key_file: Some(key_file(&folder, "key", &[1])), old_key_files: Vec::new() };
    let sealer = Sealer::load(&config).unwrap();
    let clone = sealer.clone();
    let bytes = clone.seal(EncryptionPurpose::Model, ASSOCIATED, b"weights").unwrap();
    assert!(!sealer.reload(&config).unwrap() && !clone.is_outdated(&bytes) && clone.is_outdated(b"weights"));
    // The file does not have the old key any more, but this process still has it.
    key_file(&folder, "key", &[2]);
    assert!(sealer.reload(&config).unwrap() && clone.is_outdated(&bytes));
    assert_eq!(clone.open(EncryptionPurpose::Model, ASSOCIATED, &bytes).unwrap(), b"weights");
    assert_eq!(clone.current(), Sealer::with_keys(&[[2; MASTER_KEY_BYTES]]).current());
    let fresh = Sealer::load(&config).unwrap();
    assert!(matches!(fresh.open(EncryptionPurpose::Model, ASSOCIATED, &bytes), Err(CipherError::NoKey(_))));
    key_file(&folder, "key", &[2, 1]);
    assert!(!fresh.reload(&config).unwrap());
    assert_eq!(fresh.open(EncryptionPurpose::Model, ASSOCIATED, &bytes).unwrap(), b"weights");
    ledge_base::durable::replace(&folder.path().join("key"), b"nonsense").unwrap();
    let error = fresh.reload(&config).unwrap_err().to_string();
    assert!(error.contains("make-key") && fresh.ids().len() == 2, "{error}");
}

#[test]
fn old_keys_alone_are_a_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let config = EncryptionConfig { master_key_file: None, old_key_files: vec![key_file(&folder, "key", &[1])] };
    assert!(matches!(Sealer::load(&config), Err(MasterKeyError::OnlyOld)));
    let config = EncryptionConfig { master_key_file: Some(SecretFile::Path("/nonexistent".into())), ..config };
    assert!(matches!(Sealer::load(&config), Err(MasterKeyError::Secret(_))));
}
