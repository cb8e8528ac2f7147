use std::collections::{BTreeMap, BTreeSet};

use ledge_identity::sealing::{CHUNK_BYTES, EncryptedFolder, MASTER_KEY_BYTES, MasterKeyCounts, MasterKeyId, Sealer};
use proptest::prelude::*;

use super::super::part::PartialDownload;
use super::super::survey::{StoreSurvey, survey};
use super::*;
use crate::artifact::{Artifact, FileName};
use crate::state::InstalledRelease;

/// Plain content that is searched for on the disk.
const MARKER: &[u8] = b"the weights of a model, which are nobody's business";

fn old() -> Sealer {
    Sealer::with_keys(&[[1; MASTER_KEY_BYTES]])
}

fn new() -> Sealer {
    Sealer::with_keys(&[[2; MASTER_KEY_BYTES], [1; MASTER_KEY_BYTES]])
}

fn content(length: usize) -> Vec<u8> {
    MARKER.iter().copied().cycle().take(length).collect()
}

fn sha256(content: &[u8]) -> String {
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, content))
}

fn release(version: u64) -> InstalledRelease {
    InstalledRelease { version: version.to_string().parse().unwrap(), digest: sha256(&version.to_le_bytes()) }
}

fn subject(text: &str) -> Artifact {
    text.parse().unwrap()
}

fn put(store: &UpdateStore, content: &[u8]) -> String {
    let sha256 = sha256(content);
    let mut part = store.sealed_part(&sha256, content.len() as u64).unwrap();
    part.append(&content[usize::try_from(part.length()).unwrap()..]).unwrap();
    assert!(part.finish().unwrap());
    sha256
}

fn assemble(store: &UpdateStore, subject: &Artifact, version: u64, files: &[(&str, &[u8])]) -> PathBuf {
    let file = |(name, content): &(&str, &[u8])| (name.parse::<FileName>().unwrap(), put(store, content));
    let files: Vec<_> = files.iter().map(file).collect();
    store.assemble(subject, &release(version), &files).unwrap()
}

/// Returns the files below a folder that contain the marker.
fn plain(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(plain(&path));
        } else if fs::read(&path).unwrap().windows(MARKER.len()).any(|window| window == MARKER) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn keys_in(folder: &Path) -> BTreeMap<Option<MasterKeyId>, u64> {
    survey(folder).unwrap().keys.0
}

fn rekey(store: &UpdateStore) -> RekeyCounts {
    let mut done = RekeyCounts::default();
    store.rekey(&|| false, &mut done).unwrap();
    done
}

fn opened(folder: &Path, sealer: &Sealer, file: &str) -> Vec<u8> {
    let folder = EncryptedFolder::find(folder, EncryptionPurpose::Model, sealer).unwrap().unwrap();
    fs::read(folder.open().unwrap().path().join(file)).unwrap()
}

#[test]
fn a_sealed_release_is_whole_and_says_nothing_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    let model = subject("models/minilm");
    let weights = content(3 * CHUNK_BYTES + 7);
    let files: [(&str, &[u8]); 3] = [("model.onnx", &weights), ("labels.txt", &content(100)), ("empty.txt", b"")];
    let path = assemble(&store, &model, 1, &files);
    assert!(store.verify_release(&model, &release(1), &|| {}).unwrap());
    assert_eq!(plain(folder.path()), [""; 0]);
    assert!(opened(&path, &old(), "model.onnx") == weights);
    assert_eq!(opened(&path, &old(), "empty.txt"), b"");
    assert_eq!(keys_in(folder.path()), BTreeMap::from([(old().current(), 3)]));
    drop(store);

    // Without the key it does not count as damaged: it works again once the key is back.
    let store = UpdateStore::open(folder.path()).unwrap();
    let error = store.verify_release(&model, &release(1), &|| {}).unwrap_err();
    assert!(matches!(error, StoreError::Sealed { .. }) && error.to_string().contains("master_key_file"), "{error}");
    store.discard(&subject("models/other"), &release(1), &|| {}).unwrap();
    drop(store);

    let store = UpdateStore::open_with(folder.path(), &new()).unwrap();
    let (file, blob) = (path.join("model.onnx"), store.blob(&sha256(&weights)).unwrap());
    let mut bytes = fs::read(&file).unwrap();
    bytes[CHUNK_BYTES + 500] ^= 1;
    fs::remove_file(&blob).unwrap();
    durable::replace(&file, &bytes).unwrap();
    assert!(!store.verify_release(&model, &release(1), &|| {}).unwrap());
}

#[test]
fn what_was_plain_or_under_an_old_key_is_sealed_anew_and_settings_and_runtimes_stay_plain() {
    let folder = tempfile::tempdir().unwrap();
    let (model, runtime) = (subject("models/minilm"), subject("runtimes/onnxruntime"));
    let weights = content(CHUNK_BYTES + 7);
    let store = UpdateStore::open(folder.path()).unwrap();
    let paths = [1, 2].map(|version| {
        let notes = format!("version {version}").into_bytes();
        assemble(&store, &model, version, &[("model.onnx", &weights), ("notes.txt", &notes)])
    });
    let library = assemble(&store, &runtime, 1, &[("lib.so", b"public")]);
    assert_eq!(rekey(&store), RekeyCounts::default());
    drop(store);

    for (sealer, expected) in [(old(), RekeyCounts { plain: 3, old: 0 }), (new(), RekeyCounts { plain: 0, old: 3 })] {
        let store = UpdateStore::open_with(folder.path(), &sealer).unwrap();
        let mut done = RekeyCounts::default();
        assert_eq!((store.rekey(&|| true, &mut done), done), (Ok(()), RekeyCounts::default()));
        assert_eq!(rekey(&store), expected);
        assert_eq!(rekey(&store), RekeyCounts::default());
        assert_eq!(keys_in(folder.path()), BTreeMap::from([(sealer.current(), 3)]));
        assert_eq!(plain(folder.path()), [""; 0]);
        let inode = |path: &PathBuf| path.join("model.onnx").metadata().unwrap().ino();
        assert_eq!(inode(&paths[0]), inode(&paths[1]), "releases share what they have in common");
        for version in [1, 2] {
            assert!(store.verify_release(&model, &release(version), &|| {}).unwrap());
        }
        assert!(opened(&paths[1], &sealer, "model.onnx") == weights);
        assert_eq!(fs::read(library.join("lib.so")).unwrap(), b"public");
        let hidden = |path: &PathBuf| entries(path).unwrap().len();
        assert_eq!(hidden(&paths[0]), 3, "its two files and their list");
        // A file that came encrypted with a model is unencrypted for a runtime.
        let path = assemble(&store, &runtime, 2, &[("lib.so", &weights)]);
        assert!(fs::read(path.join("lib.so")).unwrap() == weights);
        assert!(store.verify_release(&runtime, &release(2), &|| {}).unwrap());
        let keep = BTreeMap::from([(model.clone(), vec![release(1), release(2)]), (runtime.clone(), vec![release(1)])]);
        store.collect(&keep, &BTreeSet::new()).unwrap();
    }
}

#[test]
fn one_file_under_a_lost_key_keeps_no_other_from_being_sealed_anew() {
    let folder = tempfile::tempdir().unwrap();
    let lost = Sealer::with_keys(&[[9; MASTER_KEY_BYTES]]);
    let (first, second) = (subject("models/a"), subject("models/b"));
    let store = UpdateStore::open_with(folder.path(), &lost).unwrap();
    assemble(&store, &first, 1, &[("model.onnx", b"a")]);
    drop(store);
    let store = UpdateStore::open(folder.path()).unwrap();
    assemble(&store, &second, 1, &[("model.onnx", b"b")]);
    drop(store);
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    let mut done = RekeyCounts::default();
    let error = store.rekey(&|| false, &mut done).unwrap_err();
    assert!(error.contains("does not have"), "{error}");
    assert_eq!(done, RekeyCounts { plain: 1, old: 0 }, "finished files are reported");
    assert_eq!(keys_in(folder.path()), BTreeMap::from([(lost.current(), 1), (old().current(), 1)]));
}

#[test]
fn what_is_on_its_way_is_in_the_survey_and_comes_out_under_one_key() {
    let folder = tempfile::tempdir().unwrap();
    let (model, weights) = (subject("models/minilm"), content(2 * CHUNK_BYTES + 7));
    let (name, ids) = (sha256(&weights), [old().current(), new().current()]);
    let sealer = old();
    let store = UpdateStore::open_with(folder.path(), &sealer).unwrap();
    let mut part = store.sealed_part(&name, weights.len() as u64).unwrap();
    part.append(&weights[..CHUNK_BYTES + 5]).unwrap();
    part.settle().unwrap();
    assert_eq!(keys_in(folder.path()), BTreeMap::from([(ids[0], 1)]), "its key is needed");
    drop((part, store));
    let store = UpdateStore::open_with(folder.path(), &new()).unwrap();
    assert_eq!(put(&store, &weights), name);
    assert_eq!(
        survey(folder.path()).unwrap(),
        StoreSurvey { keys: MasterKeyCounts(ids.map(|id| (id, 1)).into()), damaged: 0 }
    );
    let files = [("model.onnx".parse().unwrap(), name.clone())];
    store.assemble(&model, &release(1), &files).unwrap();
    assert_eq!(keys_in(folder.path()), BTreeMap::from([(ids[1], 1)]));
    drop(store);
    let only_new = Sealer::with_keys(&[[2; MASTER_KEY_BYTES]]);
    let store = UpdateStore::open_with(folder.path(), &only_new).unwrap();
    assert!(store.verify_release(&model, &release(1), &|| {}).unwrap());
}

#[test]
fn what_came_in_plain_before_there_was_a_key_is_sealed_in_its_release() {
    let folder = tempfile::tempdir().unwrap();
    let store = UpdateStore::open(folder.path()).unwrap();
    let (name, model) = (put(&store, MARKER), subject("models/minilm"));
    drop(store);
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    store.assemble(&model, &release(1), &[("model.onnx".parse().unwrap(), name)]).unwrap();
    assert_eq!(plain(folder.path()), [""; 0]);
    assert!(store.verify_release(&model, &release(1), &|| {}).unwrap());
}

#[test]
fn a_release_under_a_lost_key_is_not_here_and_is_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let (model, files): (_, [(&str, &[u8]); 1]) = (subject("models/minilm"), [("model.onnx", MARKER)]);
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    assemble(&store, &model, 1, &files);
    drop(store);
    for (sealer, is_here) in
        [(Sealer::none(), true), (new(), true), (Sealer::with_keys(&[[9; MASTER_KEY_BYTES]]), false)]
    {
        let store = UpdateStore::open_with(folder.path(), &sealer).unwrap();
        assert_eq!(store.has(&sha256(MARKER)), is_here, "{sealer:?}");
    }
    let other = Sealer::with_keys(&[[9; MASTER_KEY_BYTES]]);
    let store = UpdateStore::open_with(folder.path(), &other).unwrap();
    let mut part: PartialDownload = store.sealed_part(&sha256(MARKER), MARKER.len() as u64).unwrap();
    part.append(MARKER).unwrap();
    assert!(part.finish().unwrap() && store.has(&sha256(MARKER)));
    store.assemble(&model, &release(1), &[("model.onnx".parse().unwrap(), sha256(MARKER))]).unwrap();
    assert!(store.verify_release(&model, &release(1), &|| {}).unwrap());
    assert_eq!(keys_in(folder.path()), BTreeMap::from([(other.current(), 1)]));
}

type RotationStep<'a> = &'a dyn Fn(&UpdateStore) -> Result<(), StoreError>;

#[test]
fn a_rotation_that_is_cut_after_any_step_leaves_every_release_whole_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = subject("models/minilm");
    let name = sha256(MARKER);
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    let paths = [1, 2].map(|version| assemble(&store, &model, version, &[("model.onnx", MARKER)]));
    drop(store);
    let done = || RekeyCounts::default();
    let steps: [RotationStep<'_>; 5] = [
        &|store| {
            store
                .write_sealed(
                    &paths[0].join("model.onnx"),
                    &name,
                    &store.blob(&name)?.with_extension(SEALING_EXTENSION),
                )
                .map(drop)
        },
        &|store| store.seal_blob(&store.blob(&name)?, &name, &mut done()),
        &|store| {
            let link = paths[0].join(".model.onnx.sealing");
            fs::hard_link(store.blob(&name)?, &link).map_err(StoreError::at("link", &link))
        },
        &|store| store.rekey_in(&paths[0], "model.onnx", &name, &mut done()),
        &|store| store.rekey_all(&|| false, &mut done()),
    ];
    for (at, step) in steps.iter().enumerate() {
        let store = UpdateStore::open_with(folder.path(), &new()).unwrap();
        step(&store).unwrap();
        drop(store);
        let store = UpdateStore::open_with(folder.path(), &new()).unwrap();
        for version in [1, 2] {
            assert!(store.verify_release(&model, &release(version), &|| {}).unwrap(), "step {at}, release {version}");
        }
        let is_over = !keys_in(folder.path()).contains_key(&old().current());
        assert_eq!(is_over, at + 1 == steps.len(), "step {at}");
    }
    let only_new = Sealer::with_keys(&[[2; MASTER_KEY_BYTES]]);
    assert!(paths.iter().all(|path| opened(path, &only_new, "model.onnx") == MARKER));
}

#[test]
fn a_file_of_which_some_is_missing_is_counted_and_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    let files: [(&str, &[u8]); 2] = [("model.onnx", &content(2 * CHUNK_BYTES)), ("labels.txt", MARKER)];
    let path = assemble(&store, &subject("models/a"), 1, &files).join("model.onnx");
    let whole = fs::read(&path).unwrap();
    for cut in [whole.len() - 1, CHUNK_BYTES, EncryptedFileHeader::BYTES] {
        durable::replace(&path, &whole[..cut]).unwrap();
        let found = survey(folder.path()).unwrap();
        assert_eq!((found.damaged, found.keys.0.keys().count()), (1, 1), "{cut}");
    }
}

#[test]
fn sealing_anew_keeps_the_room_that_is_to_stay_and_leaves_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let model = subject("models/minilm");
    let store = UpdateStore::open(folder.path()).unwrap();
    let path = assemble(&store, &model, 1, &[("model.onnx", MARKER)]);
    drop(store);
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    let free = store.free_bytes().unwrap();
    let store = store.keeping_free(free);
    let mut done = RekeyCounts::default();
    let error = store.rekey_all(&|| false, &mut done).unwrap_err();
    assert!(error.is_disk_full() && done.total() == 0, "{error}");
    assert_eq!(fs::read(path.join("model.onnx")).unwrap(), MARKER);
    // A file that changes while it is encrypted, or a disk that fails.
    let store = store.keeping_free(0);
    let blob = store.blob(&sha256(MARKER)).unwrap();
    fs::create_dir(blob.with_extension("other")).unwrap();
    assert!(store.seal_anew(&blob, &sha256(MARKER), &blob.with_extension("other"), &mut done).is_err());
    assert!(!blob.with_extension(SEALING_EXTENSION).exists());
    fs::remove_dir(blob.with_extension("other")).unwrap();
    // Leftovers of a power cut.
    let hidden = path.with_file_name(".x.new");
    durable::create_folder(&hidden).unwrap();
    fs::hard_link(store.blob(&put(&store, b"other")).unwrap(), hidden.join("f")).unwrap();
    durable::replace(&blob.with_extension(SEALING_EXTENSION), MARKER).unwrap();
    assert_eq!(rekey(&store).plain, 1);
    assert!(!hidden.exists() && plain(folder.path()).is_empty());
}

#[test]
fn plain_parts_of_before_there_was_a_key_go_once_and_those_of_runtimes_stay() {
    let folder = tempfile::tempdir().unwrap();
    let begin = |store: &UpdateStore| {
        let mut part = store.part(&sha256(MARKER), 1 << 20).unwrap();
        part.append(MARKER).unwrap();
        part.settle().unwrap();
    };
    begin(&UpdateStore::open(folder.path()).unwrap());
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    assert_eq!(plain(folder.path()), [""; 0]);
    put(&store, b"a model");
    begin(&store);
    drop(store);
    let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
    assert_eq!(store.part(&sha256(MARKER), 1 << 20).unwrap().length(), MARKER.len() as u64);
}

#[test]
fn a_part_that_was_begun_plain_is_begun_again_and_the_other_way_round() {
    let folder = tempfile::tempdir().unwrap();
    let weights = content(2 * CHUNK_BYTES + 1);
    let (name, length) = (sha256(&weights), weights.len() as u64);
    for (before, after) in [(Sealer::none(), old()), (old(), Sealer::none())] {
        let store = UpdateStore::open_with(folder.path(), &before).unwrap();
        let mut part = store.sealed_part(&name, length).unwrap();
        part.append(&weights[..=CHUNK_BYTES]).unwrap();
        part.settle().unwrap();
        drop((part, store));
        let store = UpdateStore::open_with(folder.path(), &after).unwrap();
        let part = store.sealed_part(&name, length).unwrap();
        assert_eq!(part.length(), 0);
        assert!(!after.is_on() || plain(folder.path()).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A process that is killed loses the bytes of a partial chunk, one that ends in order none.
    #[test]
    fn a_sealed_part_goes_on_wherever_it_was_left(
        length in 0..4 * CHUNK_BYTES,
        steps in proptest::collection::vec((1..CHUNK_BYTES, any::<bool>(), any::<bool>()), 0..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let store = UpdateStore::open_with(folder.path(), &old()).unwrap();
        let weights = content(length);
        let name = sha256(&weights);
        let mut part = store.sealed_part(&name, length as u64).unwrap();
        for (bytes, leave, orderly) in steps {
            let here = usize::try_from(part.length()).unwrap();
            part.append(&weights[here..length.min(here + bytes)]).unwrap();
            let here = part.length();
            if leave {
                if orderly {
                    part.settle().unwrap();
                }
                drop(part);
                part = store.sealed_part(&name, length as u64).unwrap();
                let lost = here - part.length();
                prop_assert!(lost < CHUNK_BYTES as u64 && (!orderly || lost == 0), "{} lost", lost);
            }
        }
        let here = usize::try_from(part.length()).unwrap();
        part.append(&weights[here..]).unwrap();
        prop_assert!(part.finish().unwrap());
        prop_assert!(length < MARKER.len() || plain(folder.path()).is_empty());
        let blob = store.blob(&name).unwrap();
        prop_assert_eq!(hash(&blob, &old(), &|| {}).unwrap(), name);
    }
}
