//! redb: the same bytes, committed durably by one thread, with all waiting rows in one commit.

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use ::redb::{Database, ReadableDatabase, TableDefinition};
use ledge::clock;

use crate::contender::{Store, batches, event_us, row};
use crate::load::{self, Figures, Random, Watch, nanoseconds};

const ROWS: TableDefinition<u64, &[u8]> = TableDefinition::new("rows");

/// The most rows of one commit, as in Ledge.
const COMMIT_ROWS_MAX: usize = 512;

type Row = (u64, Vec<u8>);

pub struct Redb(Database);

impl Redb {
    pub fn open(folder: &Path, cache_bytes: u64) -> Self {
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(cache_bytes).unwrap());
        Self(builder.create(folder.join("redb")).unwrap())
    }

    fn commit<'r>(&self, rows: impl Iterator<Item = &'r Row>) {
        let transaction = self.0.begin_write().unwrap();
        let mut table = transaction.open_table(ROWS).unwrap();
        for (entity, row) in rows {
            table.insert(entity, row.as_slice()).unwrap();
        }
        drop(table);
        transaction.commit().unwrap();
    }

    fn writer(&self, rows: &Receiver<(Row, Sender<()>)>) {
        while let Ok(first) = rows.recv() {
            let mut group = vec![first];
            group.extend(rows.try_iter().take(COMMIT_ROWS_MAX - 1));
            self.commit(group.iter().map(|(row, _)| row));
            for (_, reply) in group {
                reply.send(()).unwrap();
            }
        }
    }
}

impl Store for Redb {
    fn update(&mut self, entities: Range<u64>, round: u32, of: u32) -> Figures {
        let (mut random, mut latencies, mut rows) = (Random::new(u64::from(round) + 1), Vec::new(), 0);
        let now_us = clock::unix_micros();
        let watch = Watch::start(|random| row(random, now_us));
        for entities in batches(entities, round) {
            let event_us = event_us(now_us, &entities, round, of);
            let batch: Vec<Row> = entities.iter().map(|entity| (*entity, row(&mut random, event_us))).collect();
            let started = Instant::now();
            self.commit(batch.iter());
            latencies.push(nanoseconds(started.elapsed()));
            rows += batch.len();
        }
        Figures::of_rows(latencies, rows, &watch)
    }

    fn read(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures {
        let request = move |random: &mut Random| random.below(entities);
        let watch = Watch::start(request);
        let call = |entity: u64| {
            let table = self.0.begin_read().unwrap().open_table(ROWS).unwrap();
            assert!(table.get(entity).unwrap().is_some());
        };
        Figures::of(load::threads(callers, seconds, request, call), &watch)
    }

    fn write(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures {
        let request = move |random: &mut Random| (random.below(entities), row(random, clock::unix_micros()));
        let watch = Watch::start(request);
        let latencies = if callers == 1 {
            load::threads(1, seconds, request, |row| self.commit(std::iter::once(&row)))
        } else {
            std::thread::scope(|scope| {
                let (sender, receiver) = mpsc::channel();
                let this = &*self;
                scope.spawn(move || this.writer(&receiver));
                load::threads(callers, seconds, request, move |row| {
                    let (reply, answer) = mpsc::channel();
                    sender.send((row, reply)).unwrap();
                    answer.recv().unwrap();
                })
            })
        };
        Figures::of(latencies, &watch)
    }

    fn compact(&mut self) -> Figures {
        self.0.compact().unwrap();
        Figures::default()
    }
}
