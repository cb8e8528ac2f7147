//! The stores to compare, the operations to measure, and the rows.

use std::ops::Range;
use std::path::Path;

use clap::ValueEnum;

use crate::load::{Figures, Random};
use ledge::identity::sealing::Sealer;

use crate::stores::{ledge::Ledge, redb::Redb, sled::Sled};

/// The rows of a batch.
pub const BATCH_ROWS: u64 = 500;

/// The features of a row.
pub const ROW_FEATURES: usize = 20;

/// The ttl of a row in Ledge, in seconds.
pub const TTL_S: i64 = 86_400;

/// A store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Contender {
    Ledge,
    /// Ledge with a master key.
    Sealed,
    Sled,
    Redb,
}

impl Contender {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ledge => "ledge",
            Self::Sealed => "sealed",
            Self::Sled => "sled",
            Self::Redb => "redb",
        }
    }

    /// Opens the store until it answers reads.
    pub fn open(self, folder: &Path, cache_bytes: u64) -> Box<dyn Store> {
        match self {
            Self::Ledge => Box::new(Ledge::open(folder, cache_bytes, Sealer::none())),
            Self::Sealed => Box::new(Ledge::open(folder, cache_bytes, Sealer::with_keys(&[[7; 32]]))),
            Self::Sled => Box::new(Sled::open(folder, cache_bytes)),
            Self::Redb => Box::new(Redb::open(folder, cache_bytes)),
        }
    }
}

/// The operations to measure.
pub trait Store {
    /// The result of a start.
    fn started(&self) -> Figures {
        Figures::default()
    }

    /// Writes every entity once, in batches, each durable before the next. Each round of the day adds visitors, a tenth
    /// as many. Their rows expire in Ledge at once; the other stores have no expiry and keep them.
    fn update(&mut self, entities: Range<u64>, round: u32, of: u32) -> Figures;
    fn read(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures;
    fn write(&mut self, callers: usize, seconds: f64, entities: u64) -> Figures;
    fn snapshot(&mut self) -> Figures {
        Figures::default()
    }
    fn compact(&mut self) -> Figures {
        Figures::default()
    }
}

/// The entities of a round, in batches. After the load they are in random order.
pub fn batches(entities: Range<u64>, round: u32) -> impl Iterator<Item = Vec<u64>> {
    let count = entities.end - entities.start;
    // A step without a common divisor with the count visits every entity once.
    let step = if round == 0 { 1 } else { coprime(count * 5 / 8, count) };
    let at = move |number: u64| {
        entities.start + u64::try_from(u128::from(number) * u128::from(step) % u128::from(count.max(1))).unwrap()
    };
    let in_batches = |mut entities: Box<dyn Iterator<Item = u64>>| {
        std::iter::from_fn(move || {
            let batch: Vec<u64> = entities.by_ref().take(usize::try_from(BATCH_ROWS).unwrap()).collect();
            (!batch.is_empty()).then_some(batch)
        })
    };
    let visitors = if round == 0 { 0..0 } else { 0..count / 10 };
    let visitors = visitors.map(move |visitor| FIRST_VISITOR * u64::from(round) + visitor);
    in_batches(Box::new((0..count).map(at))).chain(in_batches(Box::new(visitors)))
}

/// The first number of the visitors. Their rows expire at once.
const FIRST_VISITOR: u64 = 1 << 32;

fn coprime(near: u64, count: u64) -> u64 {
    fn divisor(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    (near.max(1)..=u64::MAX).find(|step| divisor(*step, count) == 1).unwrap()
}

/// The event time of the rows of a batch, in microseconds: in the rounds of a day up to now; long ago for visitors.
pub fn event_us(now_us: i64, batch: &[u64], round: u32, of: u32) -> i64 {
    let visitors = batch.first().is_some_and(|entity| *entity >= FIRST_VISITOR);
    let hours = if visitors { 25 } else { 20 * i64::from(of - round.min(of)) / i64::from(of.max(1)) };
    now_us - hours * 3_600_000_000
}

/// The features of a row.
pub fn values(random: &mut Random) -> [f32; ROW_FEATURES] {
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
    std::array::from_fn(|_| random.below(1 << 24) as f32 / 1e3)
}

/// A row as bytes, for stores without features.
pub fn row(random: &mut Random, event_us: i64) -> Vec<u8> {
    let mut bytes = event_us.to_le_bytes().to_vec();
    for value in values(random) {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}
