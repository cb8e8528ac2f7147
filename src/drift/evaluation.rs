//! The measurement of docs/drift.md: ten kinds of drift and ten honest weeks on each table of a folder. Run by hand:
//! `LEDGE_DRIFT_DATA=FOLDER cargo test -p ledge-drift --release -- --ignored --nocapture measurement`, where the folder
//! has tables of numbers as CSV with a line of names.

use std::path::{Path, PathBuf};

use crate::column::{Reading, Side};
use crate::statistics::number;
use crate::watch::{ColumnReading, VersionWatch, WatchSettings};

const SETTINGS: WatchSettings =
    WatchSettings { window_ms: 86_400_000, calls_min: 300, learning_windows: 7, persistence: 3 };

/// The days before a drift begins, and those after.
const DAYS_BEFORE: u64 = 10;
const DAYS_AFTER: u64 = 7;

/// The honest weeks, and the kinds of drift.
const HONEST: [&str; 10] = [
    "plain",
    "daily cycle",
    "quiet weekends",
    "few calls",
    "one row a thousand times",
    "a new caller",
    "another mix at weekends",
    "rows three times",
    "a noise of 2 %",
    "one odd day",
];
const DRIFTS: [&str; 10] = [
    "shift by 1 sd",
    "times 1.5",
    "variance doubled",
    "10 % missing",
    "stuck",
    "10 % beyond the range",
    "two columns exchanged",
    "a part of the population",
    "another unit in 20 %",
    "clipped",
];

struct Table {
    name: String,
    rows: Vec<Vec<f64>>,
}

impl Table {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let row = |line: &str| line.split(',').map(|cell| cell.trim().parse().unwrap_or(f64::NAN)).collect();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Self { name, rows: text.lines().skip(1).map(row).collect() }
    }

    fn column(&self, column: usize) -> Vec<f64> {
        let mut values: Vec<f64> = self.rows.iter().map(|row| row[column]).filter(|value| value.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    }

    fn quantile(&self, column: usize, percent: usize) -> f64 {
        let values = self.column(column);
        values[(values.len() - 1) * percent / 100]
    }

    fn deviation(&self, column: usize) -> f64 {
        let values = self.column(column);
        let mean = values.iter().sum::<f64>() / number(values.len() as u64);
        (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / number(values.len() as u64)).sqrt()
    }
}

/// The generator of splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn unit(&mut self) -> f64 {
        number(self.next() >> 11) / number(1 << 53)
    }
}

fn observe(watch: &mut VersionWatch, row: &[f64], now_ms: u64) {
    let reading = |(column, value): (usize, &f64)| ColumnReading {
        name: format!("c{column}"),
        side: Side::Input,
        reading: if value.is_finite() { Reading::Number(*value) } else { Reading::Missing },
    };
    let row: Vec<_> = row.iter().enumerate().map(reading).collect();
    watch.observe(&row, now_ms);
}

/// Runs a history; returns the first day, from the begin of the drift, at whose end a column lasts.
fn run(table: &Table, seed: u64, honest: usize, drift: Option<usize>) -> Option<u64> {
    let mut random = Random(seed);
    let mut watch = VersionWatch::new(SETTINGS, None, 0);
    let width = table.rows[0].len();
    let target = random.below(width);
    // Whoever sorts by a column that has few values would sort nothing.
    let sorted_by = (0..width)
        .max_by_key(|column| {
            let mut all = table.column(*column);
            all.dedup();
            all.len()
        })
        .unwrap();
    let (deviation, median) = (table.deviation(target).max(1e-9), table.quantile(target, 50));
    let upper_half = table.quantile(sorted_by, 50);
    let (most, clip) = (table.quantile(target, 100), table.quantile(target, 60));
    let deviations: Vec<f64> = (0..width).map(|column| table.deviation(column)).collect();
    for day in 0..DAYS_BEFORE + DAYS_AFTER {
        let is_after = day >= DAYS_BEFORE;
        let is_weekend = day % 7 >= 5;
        let calls = match honest {
            1 => 1_440,
            2 if is_weekend => 330,
            3 => 310,
            5 if is_after => 2_000,
            _ => 1_000,
        };
        for call in 0..calls {
            let now = day * 86_400_000 + call * 86_000_000 / calls;
            // At night there are few.
            if honest == 1 && (call * 24 / calls < 7) && random.below(10) > 0 {
                continue;
            }
            let mut at = random.below(table.rows.len());
            let is_narrow = (honest == 6 && is_weekend && random.below(2) == 0) || (drift == Some(7) && is_after);
            while is_narrow && table.rows[at][sorted_by] < upper_half {
                at = random.below(table.rows.len());
            }
            let mut row = table.rows[at].clone();
            let odd_day = honest == 9 && day == DAYS_BEFORE + 2;
            if honest == 8 && is_after {
                for (column, value) in row.iter_mut().enumerate() {
                    *value += 0.02 * deviations[column] * (random.unit() - 0.5) * 2.0;
                }
            }
            if odd_day {
                for value in &mut row {
                    *value *= 2.0;
                }
            }
            if let Some(kind) = drift.filter(|_| is_after) {
                let other = (target + 1) % width;
                match kind {
                    0 => row[target] += deviation,
                    1 => row[target] *= 1.5,
                    2 => row[target] = median + (row[target] - median) * 2.0_f64.sqrt(),
                    3 if random.below(10) == 0 => row[target] = f64::NAN,
                    4 => row[target] = median,
                    5 if random.below(10) == 0 => row[target] = most + deviation * (1.0 + random.unit()),
                    6 => row.swap(target, other),
                    8 if random.below(5) == 0 => row[target] *= 1_000.0,
                    9 => row[target] = row[target].min(clip),
                    _ => {}
                }
            }
            observe(&mut watch, &row, now);
            if honest == 7 {
                observe(&mut watch, &row, now);
                observe(&mut watch, &row, now);
            }
        }
        if honest == 4 && is_after {
            let row = table.rows[random.below(table.rows.len())].clone();
            for _ in 0..1_000 {
                observe(&mut watch, &row, day * 86_400_000 + 86_100_000);
            }
        }
        watch.tick((day + 1) * 86_400_000);
        if is_after && watch.judgements().any(|(_, _, lasts)| lasts) {
            return Some(day - DAYS_BEFORE + 1);
        }
    }
    None
}

#[test]
#[ignore = "needs a folder with tables: LEDGE_DRIFT_DATA"]
fn measurement_of_found_drifts_and_false_findings() {
    let folder = std::env::var_os("LEDGE_DRIFT_DATA").map(PathBuf::from).expect("the folder of the tables");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let tables: Vec<Table> = files.iter().map(|path| Table::read(path)).collect();
    for (half, parity) in [("tuned on", 0), ("quoted", 1)] {
        let (mut found, mut false_ones, mut runs, mut weeks) = ([0; 10], [0; 10], 0, 0);
        let mut names = Vec::new();
        for (_, table) in tables.iter().enumerate().filter(|(at, _)| at % 2 == parity) {
            names.push(table.name.as_str());
            for seed in 0..3 {
                runs += 1;
                for kind in 0..10 {
                    found[kind] += u32::from(run(table, seed * 100 + kind as u64, 0, Some(kind)).is_some());
                    false_ones[kind] += u32::from(run(table, 7_000 + seed * 100 + kind as u64, kind, None).is_some());
                    weeks += 1;
                }
            }
        }
        println!("{half}: {}", names.join(", "));
        for kind in 0..10 {
            println!(
                "  {:<26} found {:>2} of {runs}   {:<26} false {:>2} of {runs}",
                DRIFTS[kind], found[kind], HONEST[kind], false_ones[kind]
            );
        }
        println!(
            "  found {} of {}, false {} of {weeks}",
            found.iter().sum::<u32>(),
            runs * 10,
            false_ones.iter().sum::<u32>()
        );
    }
}
