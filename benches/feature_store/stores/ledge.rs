//! Ledge's own store, through the interface that HTTP and MQTT use.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ledge::audit_event::AuditSink;
use ledge::clock;
use ledge::features::config::FeaturesConfig;
use ledge::features::online::{
    FeaturePush, FeatureSelection, FieldStatus, FrameColumns, OnlineFeaturesRequest, PushTarget,
};
use ledge::features::registry::Registry;
use ledge::features::{FeatureCaller, FeatureStore};
use ledge::identity::sealing::Sealer;
use ledge::principal::Principal;
use serde_json::Value as Json;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::contender::{BATCH_ROWS, ROW_FEATURES, Store, TTL_S, batches, event_us, values};
use crate::load::{Figures, Random, Watch, nanoseconds};

pub struct Ledge {
    runtime: Runtime,
    store: FeatureStore,
    /// The seconds from the start until the first push was taken.
    taken_after_s: f64,
}

fn declared() -> String {
    let schema: Vec<String> = (0..ROW_FEATURES).map(|at| format!("{{ name = 'f{at}', dtype = 'Float32' }}")).collect();
    format!(
        "[[entity]]\nname = 'user'\njoin_key = 'user_id'\nvalue_type = 'Int64'\n[[feature_view]]\nname = 'profile'\n\
         entities = ['user']\nttl = '{TTL_S}s'\nsource = {{ name = 'users' }}\nschema = [{}]\n",
        schema.join(", ")
    )
}

/// A push of these entities.
fn push(random: &mut Random, entities: &[u64], event_us: i64) -> FeaturePush {
    let mut columns: FrameColumns = Vec::with_capacity(ROW_FEATURES + 2);
    columns.push(("user_id".into(), entities.iter().map(|entity| Json::from(*entity)).collect()));
    columns.extend((0..ROW_FEATURES).map(|at| (format!("f{at}"), Vec::with_capacity(entities.len()))));
    for _ in entities {
        for ((_, cells), value) in columns.iter_mut().skip(1).zip(values(random)) {
            cells.push(Json::from(value));
        }
    }
    columns.push(("event_timestamp".into(), entities.iter().map(|_| Json::from(event_us)).collect()));
    FeaturePush { target: PushTarget::Source("users".into()), columns }
}

fn read_of(entity: u64) -> OnlineFeaturesRequest {
    let features = (0..ROW_FEATURES).map(|at| format!("profile:f{at}")).collect();
    OnlineFeaturesRequest {
        selection: FeatureSelection::Features(features),
        entities: vec![("user_id".into(), vec![Json::from(entity)])],
    }
}

impl Ledge {
    pub fn open(folder: &Path, cache_bytes: u64, sealer: Sealer) -> Self {
        let started = Instant::now();
        let (views, path) = (folder.join("views"), folder.join("store"));
        std::fs::create_dir_all(&views).unwrap();
        std::fs::create_dir_all(&path).unwrap();
        ledge::durable::replace(&views.join("views.toml"), declared().as_bytes()).unwrap();
        let registry = Registry::load(&views, &path).unwrap();
        registry.save(&path).unwrap();
        let cache_mb = cache_bytes >> 20;
        let config = FeaturesConfig { views, path, cache_mb, keep_expired_h: 0, ..FeaturesConfig::default() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let store = FeatureStore::open(&config, registry, AuditSink::to_nowhere(), sealer);
        let push = push(&mut Random::new(0), &[0], clock::unix_micros());
        let caller = || FeatureCaller::unlimited(Principal::Local);
        while runtime.block_on(store.push(push.clone(), caller())).is_err() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let opened = Self { runtime, store, taken_after_s: started.elapsed().as_secs_f64() };
        opened.runtime.block_on(opened.store.opened());
        // A rebuild of the index may continue after that.
        while opened.store.statistics().unwrap().state != "ready" {
            std::thread::sleep(Duration::from_millis(2));
        }
        opened
    }

    /// Reads a random entity every millisecond until the flag is set. The task has the latencies.
    fn read_meanwhile(&self, entities: u64) -> (Arc<AtomicBool>, JoinHandle<Vec<u32>>) {
        let stop = Arc::new(AtomicBool::new(false));
        let (store, stopped) = (self.store.clone(), stop.clone());
        let reading = async move {
            let (mut latencies, mut random) = (Vec::new(), Random::new(crate::process::seed()));
            let mut pace = tokio::time::interval(Duration::from_millis(1));
            while !stopped.load(Relaxed) {
                pace.tick().await;
                let request = read_of(random.below(entities));
                let started = Instant::now();
                let caller = FeatureCaller::unlimited(Principal::Local);
                store.get_online_features(request, caller).await.unwrap();
                latencies.push(nanoseconds(started.elapsed()));
            }
            latencies
        };
        (stop, self.runtime.spawn(reading))
    }

    fn callers<R, F>(
        &self,
        callers: usize,
        seconds: f64,
        request: impl Fn(&mut Random) -> R + Clone + Send + 'static,
        call: impl Fn(FeatureStore, R) -> F + Clone + Send + 'static,
    ) -> Vec<u32>
    where
        R: Send,
        F: Future<Output = ()> + Send,
    {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let one = |caller: u64| {
            let (store, request, call) = (self.store.clone(), request.clone(), call.clone());
            async move {
                let (mut latencies, mut random) = (Vec::new(), Random::new(caller + crate::process::seed()));
                loop {
                    let (request, store) = (request(&mut random), store.clone());
                    let started = Instant::now();
                    call(store, request).await;
                    let now = Instant::now();
                    latencies.push(nanoseconds(now - started));
                    if now >= end {
                        return latencies;
                    }
                }
            }
        };
        if callers == 1 {
            return self.runtime.block_on(one(0));
        }
        let running: Vec<_> = (0..callers).map(|caller| self.runtime.spawn(one(caller as u64))).collect();
        let mut all = Vec::new();
        for running in running {
            all.append(&mut self.runtime.block_on(running).unwrap());
        }
        all
    }
}

impl Store for Ledge {
    fn started(&self) -> Figures {
        Figures { note: format!("pushes after {:.2} s", self.taken_after_s), ..Figures::default() }
    }

    fn update(&mut self, entities: Range<u64>, round: u32, of: u32) -> Figures {
        let mut random = Random::new(u64::from(round) + 1);
        let mut latencies = Vec::new();
        let now_us = clock::unix_micros();
        let mut rows = 0;
        let reading = (round > 0).then(|| self.read_meanwhile(entities.end));
        let batch: Vec<u64> = (0..BATCH_ROWS).collect();
        #[expect(clippy::cast_precision_loss, reason = "500")]
        let watch = Watch::start_after(40, BATCH_ROWS as f64, |random| push(random, &batch, now_us));
        for batch in batches(entities, round) {
            let push = push(&mut random, &batch, event_us(now_us, &batch, round, of));
            let started = Instant::now();
            let pushed =
                self.runtime.block_on(self.store.push(push, FeatureCaller::unlimited(Principal::Local))).unwrap();
            latencies.push(nanoseconds(started.elapsed()));
            assert_eq!(pushed.rows.accepted + pushed.rows.outdated, batch.len(), "{pushed:?}");
            rows += batch.len();
        }
        let figures = Figures::of_rows(latencies, rows, &watch);
        let Some((stop, reads)) = reading else { return figures };
        stop.store(true, Relaxed);
        let reads = Figures::of(self.runtime.block_on(reads).unwrap(), &watch);
        Figures { note: format!("reads meanwhile p99 {:.0} us, max {:.0} us", reads.p99_us, reads.max_us), ..figures }
    }

    fn read(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures {
        let request = move |random: &mut Random| read_of(random.below(entities));
        let watch = Watch::start(request);
        let latencies = self.callers(callers, seconds, request, |store, request| async move {
            let found = store.get_online_features(request, FeatureCaller::unlimited(Principal::Local)).await.unwrap();
            assert_eq!(found.cells.count(), ROW_FEATURES);
            let cell = found.cells.column(0).first();
            assert!(cell.is_some_and(|cell| cell.status == FieldStatus::Present), "{cell:?}");
        });
        Figures::of(latencies, &watch)
    }

    fn write(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures {
        let request = move |random: &mut Random| {
            let entity = random.below(entities);
            push(random, &[entity], clock::unix_micros())
        };
        let watch = Watch::start(request);
        let groups = self.store.statistics().unwrap().groups;
        let latencies = self.callers(callers, seconds, request, |store, push| async move {
            assert!(store.push(push, FeatureCaller::unlimited(Principal::Local)).await.is_ok());
        });
        let groups = self.store.statistics().unwrap().groups - groups;
        let note = format!("{groups} fsyncs");
        Figures { note, ..Figures::of(latencies, &watch) }
    }

    fn snapshot(&mut self) -> Figures {
        self.runtime.block_on(self.store.snapshot()).unwrap();
        Figures::default()
    }

    fn compact(&mut self) -> Figures {
        let (before, after) = self.runtime.block_on(self.store.compact()).unwrap();
        let purged = self.store.statistics().unwrap().purged;
        Figures {
            note: format!("index {} to {} MB, {purged} rows swept", before / 1_000_000, after / 1_000_000),
            ..Figures::default()
        }
    }
}

impl Drop for Ledge {
    fn drop(&mut self) {
        self.store.close();
    }
}
