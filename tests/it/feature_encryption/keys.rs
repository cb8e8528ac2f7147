//! Damaged, missing and changing keys.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ledge::features::FeatureCaller;
use ledge::features::online::{FeatureError, FeaturePush, PushTarget};
use ledge::identity::sealing::{EncryptionConfig, Sealer};
use ledge::principal::Principal;
use ledge::secret::SecretFile;
use tempfile::TempDir;

use super::{MASTER, customer, customers_columns, files, mark, open, ready, sealer};
use crate::daemon::copy;
use crate::daemon::write;

#[test]
fn another_master_key_under_load_loses_nothing() {
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    let customers: Vec<i64> = (0..400).map(customer).collect();
    store.push_customers(&customers[..100]);
    store.close();
    // The file with the master key, which the operator changes while the store is at work.
    let file = folder.path().join("master.key");
    write(&file, &MASTER);
    let config = EncryptionConfig { master_key_file: Some(SecretFile::Path(file.clone())), ..Default::default() };
    let changing = Sealer::load(&config).unwrap();
    let store = ready(folder.path(), changing.clone());
    let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(100)));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (feature_store, stop, next, customers) =
                (store.features.clone(), stop.clone(), next.clone(), customers.clone());
            store.runtime.spawn(async move {
                let mut acknowledged = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap() % customers.len();
                    let columns = customers_columns(&customers[at..=at]);
                    let push = FeaturePush { target: PushTarget::Source("customers".into()), columns };
                    feature_store.push(push, FeatureCaller::unlimited(Principal::Local)).await.unwrap();
                    acknowledged.push(at);
                }
                acknowledged
            })
        })
        .collect();
    for key in [7, 8, 9] {
        write(&file, &[key; 32]);
        assert!(changing.reload(&config).unwrap(), "it is another one");
        assert!(store.runtime.block_on(store.features.rekey()).unwrap() >= 100);
    }
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged: BTreeSet<usize> = (0..100).collect();
    for writer in writers {
        acknowledged.extend(store.runtime.block_on(writer).unwrap());
    }
    // Keys made since the change are encrypted under the new master key already.
    store.close();
    let store = ready(folder.path(), Sealer::with_keys(&[[9; 32]]));
    assert!(acknowledged.len() > 100);
    for at in acknowledged {
        assert_eq!(store.note(customers[at]), Some(mark(customers[at])));
    }
    store.close();
    let old = open(folder.path(), sealer());
    assert!(old.features.statistics().is_none(), "the old key opens nothing");
}

#[test]
fn one_bad_copy_of_a_key_file_is_mended_and_two_close_the_store() {
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    let customers: Vec<i64> = (0..60).map(customer).collect();
    store.push_customers(&customers);
    // Rekeying makes shards.
    store.runtime.block_on(store.features.rekey()).unwrap();
    store.push_customers(&(60..70).map(customer).collect::<Vec<_>>());
    let path = store.close();
    let (a, b) = (path.join("keys/a"), path.join("keys/b"));
    let named = |prefix: &str, suffix: &str| {
        let mut names: Vec<_> = fs::read_dir(&a)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(prefix) && name.ends_with(suffix))
            .collect();
        names.sort();
        names.remove(0)
    };
    let (shard, added) = (named("", ".keys"), named("added-", ""));
    let flip = |file: &Path| {
        let mut bytes = fs::read(file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        write(file, &bytes);
    };
    for name in [shard.as_str(), added.as_str(), "head"] {
        for copy in [&a, &b] {
            flip(&copy.join(name));
            let store = ready(folder.path(), sealer());
            assert!(customers.iter().all(|customer| store.note(*customer) == Some(mark(*customer))), "{name}");
            assert!(store.features.statistics().unwrap().damage_found > 0, "{name}: nobody is told");
            store.close();
        }
    }
    let good = TempDir::new().unwrap();
    copy(&path, good.path());
    for (name, what) in [(shard.as_str(), "whose tag begins with"), ("head", "head")] {
        for remove in [false, true] {
            for copy in [&a, &b] {
                if remove { fs::remove_file(copy.join(name)).unwrap() } else { flip(&copy.join(name)) }
            }
            let before = files(&path);
            let store = open(folder.path(), sealer());
            let refused = store.runtime.block_on(store.features.snapshot()).unwrap_err();
            assert!(matches!(&refused, FeatureError::Unavailable { reason } if reason.contains(what)), "{refused}");
            store.close();
            assert_eq!(files(&path), before, "{name}: something was made anew");
            for copy in ["keys/a", "keys/b"] {
                fs::copy(good.path().join(copy).join(name), path.join(copy).join(name)).unwrap();
            }
        }
    }
    let store = ready(folder.path(), sealer());
    assert!(customers.iter().all(|customer| store.note(*customer) == Some(mark(*customer))));
}

#[test]
fn a_folder_of_keys_that_is_missing_is_not_taken_for_a_new_store() {
    let folder = TempDir::new().unwrap();
    let store = ready(folder.path(), sealer());
    store.until("sealed", |store| store.statistics().unwrap().sealing == "on");
    let customers: Vec<i64> = (0..30).map(customer).collect();
    store.push_customers(&customers[..20]);
    store.snapshot();
    store.push_customers(&customers[20..]);
    let path = store.close();
    let (keys, away) = (path.join("keys"), folder.path().join("away"));
    for empty in [false, true] {
        ledge::durable::rename(&keys, &away).unwrap();
        if empty {
            // As a disk that is not mounted leaves it.
            fs::create_dir_all(keys.join("a")).unwrap();
        }
        let before = files(&path);
        let store = open(folder.path(), sealer());
        let refused = store.runtime.block_on(store.features.snapshot()).unwrap_err();
        assert!(matches!(&refused, FeatureError::Unavailable { reason } if reason.contains("keys")), "{refused}");
        store.close();
        assert_eq!(files(&path), before, "something was made anew, or removed");
        let _ = fs::remove_dir_all(&keys);
        ledge::durable::rename(&away, &keys).unwrap();
        let store = ready(folder.path(), sealer());
        assert!(customers.iter().all(|customer| store.note(*customer) == Some(mark(*customer))));
        store.close();
    }
}
