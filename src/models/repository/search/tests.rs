use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Simulated models of known speed, measured with some scatter.
struct SimulatedModels {
    milliseconds: BTreeMap<String, f64>,
    loaded: BTreeSet<String>,
    scatter: Vec<f64>,
    slices: usize,
    most_loaded: usize,
}

fn key(choice: RunProfileChoice) -> String {
    format!("{choice:?}")
}

impl ModelMeasurer for SimulatedModels {
    async fn load(&mut self, choice: RunProfileChoice) -> Result<(), String> {
        if choice.runtime == Runtime::OpenVino && choice.threads == 4 {
            return Err("refused".to_owned());
        }
        self.loaded.insert(key(choice));
        self.most_loaded = self.most_loaded.max(self.loaded.len());
        Ok(())
    }

    async fn measure(&mut self, choice: RunProfileChoice, _: Duration) -> Result<LoadMeasurement, String> {
        assert!(self.loaded.contains(&key(choice)), "measured while not loaded");
        self.slices += 1;
        let noise = 1.0 + self.scatter[self.slices % self.scatter.len()];
        let each = Duration::from_secs_f64(self.milliseconds[&key(choice)] * noise / 1e3);
        Ok(LoadMeasurement { latencies: vec![each; 50], time: each * 50 })
    }

    async fn unload(&mut self, choice: RunProfileChoice) {
        self.loaded.remove(&key(choice));
    }

    fn progress(&mut self, _: &str, done: usize, of: usize) {
        assert!(done <= of);
    }
}

fn run(
    made: &mut SimulatedModels,
    goal: TuningGoal,
    candidates: &[RunProfileChoice],
    exhaustive: bool,
) -> Vec<TuningRow> {
    let how = TuningEffort { slice: Duration::from_millis(10), rounds: 8, exhaustive };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(search(made, goal, candidates, how))
}

proptest! {
    /// With measurements that scatter by 4 % the choice is within 3 % of the best, and everything is unloaded again.
    #[test]
    fn the_choice_is_within_three_per_cent_of_the_best(
        speeds in proptest::collection::vec(1.0_f64..3.0, 32),
        scatter in proptest::collection::vec(0.0_f64..0.04, 7),
        exhaustive in any::<bool>(),
    ) {
        let candidates = candidates(TuningGoal::Throughput, &Runtime::ALL, 4, Some(16));
        let milliseconds: BTreeMap<String, f64> =
            candidates.iter().zip(speeds.iter().cycle()).map(|(&choice, &ms)| (key(choice), ms)).collect();
        let mut made = SimulatedModels { milliseconds, loaded: BTreeSet::new(), scatter, slices: 0, most_loaded: 0 };
        let rows = run(&mut made, TuningGoal::Throughput, &candidates, exhaustive);
        let usable = |choice: &RunProfileChoice| !(choice.runtime == Runtime::OpenVino && choice.threads == 4);
        let truth = |choice: RunProfileChoice| made.milliseconds[&key(choice)];
        let best = candidates.iter().filter(|choice| usable(choice)).map(|&choice| truth(choice)).fold(f64::MAX, f64::min);
        prop_assert!(truth(rows[0].choice) <= best * 1.03, "{} {best}", truth(rows[0].choice));
        prop_assert_eq!(rows.len(), candidates.len());
        prop_assert!(rows.last().unwrap().load.is_err());
        prop_assert!(made.loaded.is_empty());
    }

    #[test]
    fn a_goal_reads_what_it_writes(ms in 1_u32..100_000, rate in 1_u32..10_000) {
        let goal = TuningGoal::Percentile { limit: Duration::from_millis(ms.into()), rate: rate.into() };
        prop_assert_eq!(goal.to_string().parse(), Ok(goal));
    }

    #[test]
    fn whatever_the_text_it_is_a_goal_or_an_error(text in ".{0,30}") {
        if let Ok(goal) = text.parse::<TuningGoal>() {
            prop_assert_eq!(goal.to_string().parse(), Ok(goal));
        }
    }
}

#[test]
fn goals_are_read_as_people_write_them() {
    let limit = |text: &str| text.parse::<TuningGoal>();
    let expected = TuningGoal::Percentile { limit: Duration::from_millis(20), rate: 50.0 };
    for text in ["p99<=20ms@50/s", "p99 <= 20 ms at 50/s", "p99<=0.02s@50", "p99<=20000us@50/s"] {
        assert_eq!(limit(text), Ok(expected), "{text}");
    }
    for text in ["", "fast", "p99<=20@50", "p99<=-1ms@50", "p99<=20ms@0/s", "p99<=0ms@5", "p99<=20ms"] {
        assert_eq!(limit(text), Err(TuningGoalError), "{text}");
    }
}

#[test]
fn for_latency_one_instance_without_batches_is_enough() {
    let found = candidates(TuningGoal::Latency, &[Runtime::OnnxRuntime], 6, Some(64));
    let shapes: Vec<_> = found.iter().map(|choice| (choice.threads, choice.instances, choice.batch)).collect();
    assert_eq!(shapes, [(1, 1, 1), (2, 1, 1), (4, 1, 1), (6, 1, 1)]);
}

#[test]
fn no_way_to_run_a_model_uses_more_cores_than_there_are() {
    for cores in 1..20 {
        for choice in candidates(TuningGoal::Throughput, &Runtime::ALL, cores, Some(8)) {
            assert!(choice.threads * choice.instances <= cores && choice.batch <= 8 && choice.instances > 0);
        }
    }
}

#[test]
fn among_equals_the_simplest_wins() {
    let candidates = candidates(TuningGoal::Throughput, &Runtime::ALL, 2, Some(16));
    let milliseconds = candidates.iter().rev().enumerate().map(|(place, &choice)| {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let ms = 1.0 + place as f64 / 10_000.0;
        (key(choice), ms)
    });
    let mut made = SimulatedModels {
        milliseconds: milliseconds.collect(),
        loaded: BTreeSet::new(),
        scatter: vec![0.0],
        slices: 0,
        most_loaded: 0,
    };
    assert_eq!(run(&mut made, TuningGoal::Throughput, &candidates, false)[0].choice, candidates[0]);
}
