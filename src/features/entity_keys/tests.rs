#![expect(clippy::disallowed_methods, reason = "what a crash or a bad disk leaves is written here")]

use std::fs;

use ledge_identity::sealing::CipherError;
use tempfile::TempDir;

use super::*;

fn sealer(byte: u8) -> Sealer {
    Sealer::with_keys(&[[byte; 32]])
}

fn open(folder: &TempDir) -> EntityKeys {
    EntityKeys::open(folder.path(), sealer(1)).unwrap().keys
}

fn tag(keys: &EntityKeys, number: i64) -> EntityTag {
    keys.tag([("user", &Value::Int64(number))])
}

/// The files that have a key. They are encrypted, so each one is opened.
fn files_with(folder: &TempDir, id: u32) -> Vec<String> {
    let disk = KeyFiles::new(folder.path());
    let head = disk.read_head(&sealer(1), &mut Vec::new()).unwrap();
    let mut found = Vec::new();
    for (shard, _) in head.present.iter().enumerate().filter(|(_, present)| **present) {
        let (_, entries) = disk.read_shard(&sealer(1), &head, shard, &mut Vec::new()).unwrap();
        found.extend(entries.iter().any(|entry| entry.id == id).then(|| format!("{shard:02x}")));
    }
    for number in disk.added().unwrap() {
        let entries = disk.read_added(&sealer(1), &head, number, &mut Vec::new()).unwrap();
        found.extend(entries.iter().any(|entry| entry.id == id).then(|| format!("added {number}")));
    }
    found
}

#[test]
fn a_key_that_was_persisted_is_there_at_the_next_start_and_stays_the_same() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    let made: Vec<_> = (0..300).map(|user| keys.find_or_make(&tag(&keys, user)).unwrap()).collect();
    keys.persist().unwrap();
    let late = keys.find_or_make(&tag(&keys, 1000)).unwrap();
    drop(keys);
    let keys = open(&folder);
    for (user, (id, key)) in (0..).zip(&made) {
        assert_eq!(keys.find_or_make(&tag(&keys, user)).unwrap(), (*id, *key));
        assert_eq!(keys.key(*id), Ok(*key));
    }
    assert_ne!(keys.find_or_make(&tag(&keys, 1000)).unwrap().1, late.1, "it was never on the disk");
    keys.persist().unwrap();
    keys.compact().unwrap();
    assert_eq!(keys.disk.added().unwrap(), [0; 0]);
    drop(keys);
    assert_eq!(open(&folder).count(), 301);
}

#[test]
fn no_keys_are_made_where_nobody_can_tell_whether_there_are_some() {
    let folder = TempDir::new().unwrap();
    assert!(!EntityKeys::exist(folder.path()).unwrap());
    // The leftovers of a power cut during the first write.
    for copy in copies(folder.path()) {
        fs::create_dir_all(&copy).unwrap();
        fs::write(copy.join("head.4711.tmp"), b"LSE1").unwrap();
    }
    assert!(!EntityKeys::exist(folder.path()).unwrap());
    let made = open(&folder).find_or_make(&[1; 16]).unwrap();
    assert!(EntityKeys::exist(folder.path()).unwrap());
    for copy in copies(folder.path()) {
        fs::remove_dir_all(&copy).unwrap();
        fs::write(&copy, b"a folder that cannot be read").unwrap();
    }
    assert!(matches!(EntityKeys::exist(folder.path()), Err(EntityKeysError::Io { .. })));
    assert!(matches!(EntityKeys::open(folder.path(), sealer(1)), Err(EntityKeysError::Io { .. })));
    assert_eq!(made.0, 0x0100_0001);
}

#[test]
fn a_destroyed_key_is_in_no_file_and_its_number_is_not_given_again() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    for user in 0..300 {
        keys.find_or_make(&tag(&keys, user)).unwrap();
    }
    keys.persist().unwrap();
    keys.compact().unwrap();
    for user in 300..400 {
        keys.find_or_make(&tag(&keys, user)).unwrap();
    }
    keys.persist().unwrap();

    for user in [5, 350] {
        let (id, key) = keys.find_or_make(&tag(&keys, user)).unwrap();
        // A key that was added is in its shard as well, once another key of that shard was destroyed.
        assert!(!files_with(&folder, id).is_empty());
        keys.mark(&[id]);
        assert_eq!(keys.key(id), Err(DamagedBytes::Erased));
        keys.destroy().unwrap();
        assert_eq!(files_with(&folder, id), [""; 0]);
        let (again, another) = keys.find_or_make(&tag(&keys, user)).unwrap();
        assert!(again != id && another != key);
        keys.persist().unwrap();
    }

    let ids: Vec<_> = (0..400).map(|user| keys.find_or_make(&tag(&keys, user)).unwrap()).collect();
    drop(keys);
    let keys = open(&folder);
    let after: Vec<_> = (0..400).map(|user| keys.find_or_make(&tag(&keys, user)).unwrap()).collect();
    assert_eq!(ids, after);
}

#[test]
fn keys_that_nothing_uses_are_forgotten_and_those_used_meanwhile_are_not() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    let ids: Vec<u32> = (0..10).map(|user| keys.find_or_make(&tag(&keys, user)).unwrap().0).collect();
    keys.persist().unwrap();
    keys.begin_census();
    keys.use_key(ids[1]);
    keys.find_or_make(&tag(&keys, 2)).unwrap();
    keys.find_or_make(&tag(&keys, 77)).unwrap();
    assert_eq!((keys.unused(), keys.end_census(true)), (8, 8));
    keys.destroy().unwrap();
    keys.persist().unwrap();
    drop(keys);
    let keys = open(&folder);
    assert_eq!((keys.count(), keys.key(ids[0])), (3, Err(DamagedBytes::Erased)));
    assert!([ids[1], ids[2]].iter().all(|id| keys.key(*id).is_ok()));
    keys.begin_census();
    assert_eq!((keys.end_census(false), keys.count()), (0, 3));
}

#[test]
fn names_and_values_tell_entities_apart_in_any_order() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    let (a, b) = (Value::Int64(1), Value::String("x".into()));
    assert_eq!(keys.tag([("user", &a), ("shop", &b)]), keys.tag([("shop", &b), ("user", &a)]));
    let all = [
        keys.tag([("user", &a)]),
        keys.tag([("shop", &a)]),
        keys.tag([("user", &Value::Int32(1))]),
        keys.tag([("user", &b), ("shop", &a)]),
        keys.tag([("user", &a), ("shop", &b)]),
    ];
    assert!(all.iter().enumerate().all(|(at, tag)| all.iter().skip(at + 1).all(|other| other != tag)));
}

#[test]
fn a_power_cut_within_a_piece_loses_that_piece_alone() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    let first = keys.find_or_make(&tag(&keys, 1)).unwrap();
    keys.persist().unwrap();
    let file = |copy: &str| folder.path().join("keys").join(copy).join("added-00000001");
    let whole = fs::read(file("a")).unwrap().len();
    keys.find_or_make(&tag(&keys, 2)).unwrap();
    keys.persist().unwrap();
    drop(keys);
    let bytes = fs::read(file("a")).unwrap();
    for cut in whole..bytes.len() {
        for copy in ["a", "b"] {
            fs::write(file(copy), &bytes[..cut]).unwrap();
        }
        let opened = EntityKeys::open(folder.path(), sealer(1)).unwrap();
        assert_eq!((opened.keys.count(), opened.keys.find_or_make(&tag(&opened.keys, 1)).unwrap()), (1, first));
    }
    // A piece with another one behind it was acknowledged.
    let mut bad = bytes.clone();
    bad[whole / 2] ^= 1;
    for copy in ["a", "b"] {
        fs::write(file(copy), &bad).unwrap();
    }
    let refused = EntityKeys::open(folder.path(), sealer(1)).unwrap_err();
    assert!(matches!(refused, EntityKeysError::Lost { .. }), "{refused}");
}

#[test]
fn a_copy_of_added_keys_that_is_not_as_it_was_written_is_mended_and_told_and_a_torn_end_is_not() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    let made: Vec<_> = (1..4)
        .map(|user| {
            let made = keys.find_or_make(&tag(&keys, user)).unwrap();
            keys.persist().unwrap();
            made
        })
        .collect();
    drop(keys);

    let file = |copy: &str| folder.path().join("keys").join(copy).join("added-00000001");
    let whole = fs::read(file("a")).unwrap();
    let piece = whole.len() / 3;
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let with = |end: &[u8]| [&whole, end].concat();
    let zeros = [&whole[..2 * piece + 9], &[0; 20]].concat();

    let cases = [
        (whole.clone(), false),
        (flipped(piece / 2), true),
        (flipped(whole.len() - 1), true),
        (flipped(2 * piece), true),
        (with(&[0; 64]), false),
        (with(&whole[..piece]), false),
        (with(&[7; 3]), false),
        (zeros, false),
        (whole[..whole.len() - 5].to_vec(), false),
        (Vec::new(), false),
    ];

    for (at, (bytes, is_told)) in cases.iter().enumerate() {
        for (copy, other) in [("a", "b"), ("b", "a")] {
            fs::write(file(copy), bytes).unwrap();
            let opened = EntityKeys::open(folder.path(), sealer(1)).unwrap();
            assert_eq!((at, opened.repaired.len()), (at, usize::from(*is_told)), "{:?}", opened.repaired);
            assert!(made.iter().all(|(id, key)| opened.keys.key(*id) == Ok(*key)), "{at}");
            assert!(fs::read(file(copy)).unwrap() == whole && fs::read(file(other)).unwrap() == whole, "{at}");
        }
    }

    // Zeros at the end of both copies come from a write that was not acknowledged, too.
    for copy in ["a", "b"] {
        fs::write(file(copy), with(&[0; 64])).unwrap();
    }
    assert_eq!(EntityKeys::open(folder.path(), sealer(1)).unwrap().keys.count(), 3);
}

#[test]
fn erasures_leave_no_pile_of_files() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    for user in 0..3 {
        let (id, _) = keys.find_or_make(&tag(&keys, user)).unwrap();
        keys.persist().unwrap();
        keys.mark(&[id]);
        keys.destroy().unwrap();
        assert_eq!(keys.disk.added().unwrap(), [0; 0], "it had nothing else");
    }
    let mut kept = Vec::new();
    for user in 0..=ADDED_FILES_MAX {
        assert!(!keys.is_fold_due());
        kept.push(keys.find_or_make(&tag(&keys, 1000 + i64::try_from(user).unwrap())).unwrap());
        keys.persist().unwrap();
        // As after an erasure: the next key goes into another file.
        keys.close_added().unwrap();
    }
    assert!(keys.is_fold_due());
    keys.compact().unwrap();
    assert_eq!(keys.disk.added().unwrap(), [0; 0]);
    assert!(!keys.is_fold_due());
    drop(keys);
    let keys = open(&folder);
    assert_eq!(keys.count(), kept.len());
    assert!(kept.iter().all(|(id, key)| keys.key(*id) == Ok(*key)));
}

#[test]
fn files_of_another_store_or_place_do_not_open() {
    let (one, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for folder in [&one, &other] {
        let keys = open(folder);
        // So many that no file is without a key.
        for user in 0..4000 {
            keys.find_or_make(&tag(&keys, user)).unwrap();
        }
        keys.persist().unwrap();
        keys.compact().unwrap();
    }
    let path = |folder: &TempDir, copy: &str, name: &str| folder.path().join("keys").join(copy).join(name);
    for (from, name) in [(&other, "00.keys"), (&one, "01.keys")] {
        let good = fs::read(path(&one, "a", "00.keys")).unwrap();
        for copy in ["a", "b"] {
            fs::copy(path(from, copy, name), path(&one, copy, "00.keys")).unwrap();
        }
        let refused = EntityKeys::open(one.path(), sealer(1)).unwrap_err().to_string();
        assert!(refused.contains("00.keys") && refused.contains("it belongs to another file or purpose"), "{refused}");
        for copy in ["a", "b"] {
            fs::write(path(&one, copy, "00.keys"), &good).unwrap();
        }
    }
    assert!(matches!(EntityKeys::open(one.path(), sealer(2)), Err(EntityKeysError::Sealed(CipherError::NoKey(_)))));
    assert!(matches!(EntityKeys::open(one.path(), Sealer::none()), Err(EntityKeysError::Off)));
}

#[test]
#[ignore = "a million keys: run it with --release"]
fn a_million_keys_stay_below_120_bytes_each() {
    let folder = TempDir::new().unwrap();
    let keys = open(&folder);
    let resident = || -> u64 {
        let text = fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };

    let (before, started) = (resident(), std::time::Instant::now());
    for user in 0..1_000_000 {
        keys.find_or_make(&tag(&keys, user)).unwrap();
        if user % 512 == 0 {
            keys.persist().unwrap();
        }
        if keys.is_fold_due() {
            keys.compact().unwrap();
        }
    }
    keys.persist().unwrap();
    println!("made in {:?}", started.elapsed());

    let folding = std::time::Instant::now();
    keys.compact().unwrap();
    let taken = resident().saturating_sub(before);
    let disk: u64 = ["a", "b"]
        .iter()
        .flat_map(|copy| fs::read_dir(folder.path().join("keys").join(copy)).unwrap())
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    println!("folded in {:?}; {} MB in memory, {} MB in both copies", folding.elapsed(), taken >> 20, disk >> 20);

    let (id, _) = keys.find_or_make(&tag(&keys, 77)).unwrap();
    let destroying = std::time::Instant::now();
    keys.mark(&[id]);
    keys.destroy().unwrap();
    println!("one destroyed in {:?}", destroying.elapsed());

    let opening = std::time::Instant::now();
    drop(keys);
    assert_eq!(open(&folder).count(), 999_999);
    println!("opened in {:?}", opening.elapsed());
    assert!(taken < 120 << 20 && disk < 120 << 20, "{taken} {disk}");
}
