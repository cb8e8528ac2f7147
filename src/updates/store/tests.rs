use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::artifact::FileName;

fn subject() -> Artifact {
    "models/minilm".parse().unwrap()
}

fn release(version: u64) -> InstalledRelease {
    InstalledRelease { version: version.to_string().parse().unwrap(), digest: sha256(&version.to_le_bytes()) }
}

fn sha256(content: &[u8]) -> String {
    hex::encode(aws_lc_rs::digest::digest(&SHA256, content))
}

/// Puts a file into the store as a download does.
fn put(store: &UpdateStore, content: &[u8]) -> String {
    let sha256 = sha256(content);
    if store.has(&sha256) {
        return sha256;
    }
    let mut part = store.part(&sha256, content.len() as u64).unwrap();
    part.append(&content[usize::try_from(part.length()).unwrap()..]).unwrap();
    assert!(part.finish().unwrap());
    sha256
}

fn files(store: &UpdateStore, named: &[(&str, &str)]) -> Vec<(FileName, String)> {
    named.iter().map(|(name, content)| (name.parse().unwrap(), put(store, content.as_bytes()))).collect()
}

fn opened() -> (tempfile::TempDir, UpdateStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = UpdateStore::open(&folder.path().join("updates")).unwrap();
    (folder, store)
}

fn keep(releases: &[u64]) -> BTreeMap<Artifact, Vec<InstalledRelease>> {
    BTreeMap::from([(subject(), releases.iter().map(|version| release(*version)).collect())])
}

/// Returns the files below the folder of the store, without the lock.
fn listing(store: &UpdateStore) -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(&store.folder, &mut found);
    let name = |path: &PathBuf| path.strip_prefix(&store.folder).unwrap().display().to_string();
    let mut names: Vec<_> = found.iter().map(name).filter(|name| name != ".lock").collect();
    names.sort();
    names
}

#[test]
fn a_second_process_does_not_get_the_store() {
    let (folder, store) = opened();
    let path = folder.path().join("updates");
    let error = UpdateStore::open(&path).unwrap_err();
    assert!(matches!(&error, StoreError::Locked { folder } if *folder == path), "{error}");
    drop(store);
    UpdateStore::open(&path).unwrap();
}

#[test]
fn what_is_no_hash_names_no_file() {
    let (_folder, store) = opened();
    for text in ["", "..", "../../etc/passwd", &"g".repeat(64), &"A".repeat(64), &"a".repeat(63), &"é".repeat(32)] {
        assert!(!store.has(text));
        let error = store.part(text, 1).err().unwrap();
        assert!(matches!(error, StoreError::Digest { .. }), "{error}");
    }
}

#[test]
fn a_digest_cannot_lead_a_release_elsewhere() {
    let (_folder, store) = opened();
    let release = InstalledRelease { version: "2".parse().unwrap(), digest: "../../../ab0123456789abcdef".into() };
    let folder = store.release_folder(&subject(), &release);
    assert_eq!(folder, store.folder.join("releases/models/minilm/2-ab0123456789abcd"));
}

#[test]
fn a_release_is_made_of_what_was_fetched_and_found_whole() {
    let (_folder, store) = opened();
    let files = files(&store, &[("model.onnx", "weights"), ("model.toml", "x = 1"), ("copy.toml", "x = 1")]);
    assert!(!store.verify_release(&subject(), &release(1), &|| {}).unwrap());
    let folder = store.assemble(&subject(), &release(1), &files).unwrap();
    assert_eq!(fs::read(folder.join("model.onnx")).unwrap(), b"weights");
    assert_eq!(fs::read(folder.join("copy.toml")).unwrap(), b"x = 1");
    assert!(store.verify_release(&subject(), &release(1), &|| {}).unwrap());
    assert_eq!(store.assemble(&subject(), &release(1), &files).unwrap(), folder);
}

#[test]
fn a_release_whose_files_are_not_all_here_is_not_made() {
    let (_folder, store) = opened();
    let mut files = files(&store, &[("a", "1")]);
    files.push(("b".parse().unwrap(), sha256(b"2")));
    let error = store.assemble(&subject(), &release(1), &files).unwrap_err();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    assert!(!store.release_folder(&subject(), &release(1)).exists());
    files.pop();
    store.assemble(&subject(), &release(1), &files).unwrap();
}

#[test]
fn what_is_in_a_release_cannot_be_written_to_by_mistake() {
    let (_folder, store) = opened();
    let folder = store.assemble(&subject(), &release(1), &files(&store, &[("a", "1")])).unwrap();
    assert!(fs::metadata(folder.join("a")).unwrap().permissions().readonly());
}

#[test]
fn a_release_that_the_disk_changed_is_found_out_and_fetched_again() {
    type Damage = fn(&Path);
    let flip: Damage = |folder| {
        let path = folder.join("b");
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        #[expect(clippy::permissions_set_readonly_false, reason = "as a disk does, which asks nobody")]
        permissions.set_readonly(false);
        fs::set_permissions(&path, permissions).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"3", 0).unwrap();
    };
    let damages: [(&str, Damage); 5] = [
        ("a flipped bit", flip),
        ("a missing file", |folder| fs::remove_file(folder.join("a")).unwrap()),
        ("no list", |folder| fs::remove_file(folder.join(".sha256sums")).unwrap()),
        ("an empty list", |folder| durable::replace(&folder.join(".sha256sums"), b"").unwrap()),
        ("a list of anything", |folder| durable::replace(&folder.join(".sha256sums"), b"\xff\n \n").unwrap()),
    ];
    for (what, damage) in damages {
        let (_folder, store) = opened();
        let named = [("a", "1"), ("b", "2")];
        let folder = store.assemble(&subject(), &release(1), &files(&store, &named)).unwrap();
        damage(&folder);
        assert!(!store.verify_release(&subject(), &release(1), &|| {}).unwrap(), "{what}");
        store.discard(&subject(), &release(1), &|| {}).unwrap();
        assert!(!folder.exists(), "{what}");
        store.collect(&keep(&[]), &[sha256(b"1"), sha256(b"2")].into()).unwrap();
        for content in ["1", "2"] {
            let blob = store.blob(&sha256(content.as_bytes())).unwrap();
            assert!(!blob.exists() || fs::read(blob).unwrap() == content.as_bytes(), "{what}");
        }
        let list = named.map(|(name, content)| {
            let sha256 = put(&store, content.as_bytes());
            (name.parse().unwrap(), sha256)
        });
        store.assemble(&subject(), &release(1), &list).unwrap();
        assert!(store.verify_release(&subject(), &release(1), &|| {}).unwrap(), "{what}");
    }
}

#[test]
fn a_file_that_somebody_put_beside_those_of_a_release_does_it_no_harm() {
    let (_folder, store) = opened();
    let folder = store.assemble(&subject(), &release(1), &files(&store, &[("a", "1")])).unwrap();
    durable::replace(&folder.join("c"), b"3").unwrap();
    assert!(store.verify_release(&subject(), &release(1), &|| {}).unwrap());
}

#[test]
fn garbage_goes_and_what_is_kept_or_wanted_stays() {
    let (_folder, store) = opened();
    for (version, named) in [(1, [("a", "shared"), ("b", "old")]), (2, [("a", "shared"), ("b", "new")])] {
        store.assemble(&subject(), &release(version), &files(&store, &named)).unwrap();
    }
    let (wanted, other) = (put(&store, b"wanted"), put(&store, b"nobody's"));
    let mut part = store.part(&sha256(b"on its way"), 10).unwrap();
    part.append(b"on its").unwrap();
    part.settle().unwrap();
    let mut old = store.part(&sha256(b"given up"), 8).unwrap();
    old.append(b"giv").unwrap();
    old.settle().unwrap();
    drop((part, old));
    let stale = releases(&store.folder, &subject()).join(".3-0123.new");
    durable::create_folder(&stale).unwrap();
    fs::hard_link(store.blob(&other).unwrap(), stale.join("a")).unwrap();

    let freed = store.collect(&keep(&[2]), &[wanted.clone(), sha256(b"on its way")].into()).unwrap();
    let way = sha256(b"on its way");
    let release = store.release_folder(&subject(), &release(2));
    let release = release.strip_prefix(&store.folder).unwrap().display();
    let mut expected = vec![
        format!("blobs/{}", sha256(b"shared")),
        format!("blobs/{}", sha256(b"new")),
        format!("blobs/{wanted}"),
        format!("blobs/{way}.part"),
        format!("blobs/{way}.synced"),
        format!("{release}/.sha256sums"),
        format!("{release}/a"),
        format!("{release}/b"),
    ];
    expected.sort();
    assert_eq!(listing(&store), expected);
    let list = 2 * (64 + 2 + 1 + 1);
    assert_eq!(freed, ("old".len() + "nobody's".len() + "giv".len() + "3".len() + list) as u64);
    assert_eq!(store.collect(&keep(&[2]), &[wanted, way].into()).unwrap(), 0);
}

#[test]
fn a_part_goes_on_where_it_was_left() {
    let (_folder, store) = opened();
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (sha256, length) = (sha256(&content), content.len() as u64);
    let mut part = store.part(&sha256, length).unwrap();
    part.append(&content[..1_500_000]).unwrap();
    part.settle().unwrap();
    drop(part);
    let mut part = store.part(&sha256, length).unwrap();
    assert_eq!(part.length(), 1_500_000);
    part.append(&content[1_500_000..1_550_000]).unwrap();
    drop(part);
    // Noted bytes are certain, and none after them.
    let mut part = store.part(&sha256, length).unwrap();
    assert_eq!(part.length(), 1_500_000);
    part.append(&content[1_500_000..]).unwrap();
    assert!(part.finish().unwrap());
    assert_eq!(fs::read(store.blob(&sha256).unwrap()).unwrap(), content);
    assert_eq!(listing(&store), [format!("blobs/{sha256}")]);
}

#[test]
fn a_part_that_is_whole_needs_no_byte_more() {
    let (_folder, store) = opened();
    let sha256 = sha256(b"content");
    let mut part = store.part(&sha256, 7).unwrap();
    part.append(b"content").unwrap();
    drop(part);
    let mut part = store.part(&sha256, 7).unwrap();
    assert_eq!(part.length(), 7);
    assert!(part.finish().unwrap());
}

#[test]
fn a_part_of_another_file_does_not_become_a_blob() {
    let (_folder, store) = opened();
    let sha256 = sha256(b"content");
    let mut part = store.part(&sha256, 7).unwrap();
    part.append(b"CONTENT").unwrap();
    assert!(!part.finish().unwrap());
    assert!(!store.has(&sha256));
    part.remove().unwrap();
    assert_eq!(listing(&store), [""; 0]);
}

#[test]
fn whoever_comes_second_waits_and_gets_the_same_part() {
    let (_folder, store) = opened();
    let content = vec![7; 100];
    let sha256 = sha256(&content);
    let mut first = store.part(&sha256, 100).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| store.part(&sha256, 100).unwrap().length());
        first.append(&content[..40]).unwrap();
        first.settle().unwrap();
        drop(first);
        assert_eq!(second.join().unwrap(), 40);
    });
}

/// Bytes between two calls of fdatasync.
const SYNC_BYTES: usize = 512 << 10;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_power_cut_costs_a_mib_at_most_and_never_the_content(
        cuts in prop::collection::vec((1..1_800_000_usize, any::<bool>(), any::<u64>()), 1..6),
    ) {
        let (_folder, store) = opened();
        let content: Vec<u8> = (0..2_621_441_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (sha256, length) = (sha256(&content), content.len());
        for (more, orderly, damage) in cuts {
            let mut part = store.part(&sha256, length as u64).unwrap();
            let from = usize::try_from(part.length()).unwrap();
            let to = (from + more).min(length);
            part.append(&content[from..to]).unwrap();
            if orderly {
                part.settle().unwrap();
            }
            drop(part);
            let synced = if orderly { to } else { from.max(to / SYNC_BYTES * SYNC_BYTES) };
            // After a power cut, bytes that were not synced may be zeros or missing.
            let file = File::options().write(true).open(store.blob(&sha256).unwrap().with_extension("part")).unwrap();
            let left = synced + usize::try_from(damage).unwrap_or(usize::MAX) % (to - synced + 1);
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; to - synced], synced as u64).unwrap();
            file.set_len(left as u64).unwrap();
            drop(file);
            let again = usize::try_from(store.part(&sha256, length as u64).unwrap().length()).unwrap();
            prop_assert!(again <= synced && to - again <= 1 << 20, "{to} were here, {synced} synced, {again} are left");
        }
        prop_assert_eq!(put(&store, &content), sha256.clone());
        prop_assert_eq!(fs::read(store.blob(&sha256).unwrap()).unwrap(), content);
    }
}
