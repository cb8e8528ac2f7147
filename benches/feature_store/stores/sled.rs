//! Plain sled: the number of the entity is the key, and the bytes of the row are the value.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use ledge::clock;
use sled::{Batch, Db};

use crate::contender::{Store, batches, event_us, row};
use crate::load::{self, Figures, Random, Watch, nanoseconds};

pub struct Sled(Db);

impl Sled {
    pub fn open(folder: &Path, cache_bytes: u64) -> Self {
        let config = sled::Config::default().path(folder.join("sled")).cache_capacity(cache_bytes);
        Self(config.flush_every_ms(Some(200)).open().unwrap())
    }
}

impl Store for Sled {
    fn update(&mut self, entities: Range<u64>, round: u32, of: u32) -> Figures {
        let (mut random, mut latencies, mut rows) = (Random::new(u64::from(round) + 1), Vec::new(), 0);
        let now_us = clock::unix_micros();
        let watch = Watch::start(|random| row(random, now_us));
        for entities in batches(entities, round) {
            let event_us = event_us(now_us, &entities, round, of);
            let mut batch = Batch::default();
            for entity in &entities {
                batch.insert(&entity.to_be_bytes(), row(&mut random, event_us));
            }
            let started = Instant::now();
            self.0.apply_batch(batch).unwrap();
            self.0.flush().unwrap();
            latencies.push(nanoseconds(started.elapsed()));
            rows += entities.len();
        }
        Figures::of_rows(latencies, rows, &watch)
    }

    fn read(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures {
        let request = move |random: &mut Random| random.below(entities);
        let watch = Watch::start(request);
        let call = |entity: u64| assert!(self.0.get(entity.to_be_bytes()).unwrap().is_some());
        Figures::of(load::threads(callers, seconds, request, call), &watch)
    }

    fn write(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures {
        let request = move |random: &mut Random| (random.below(entities), row(random, clock::unix_micros()));
        let watch = Watch::start(request);
        let call = |(entity, row): (u64, Vec<u8>)| {
            self.0.insert(entity.to_be_bytes(), row).unwrap();
            self.0.flush().unwrap();
        };
        Figures::of(load::threads(callers, seconds, request, call), &watch)
    }
}
