use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{Backend, ComputeTime, ModelRunError, ModelSignature, RunContext, RunResult, Runtime};
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::work::{FinishedPipelineRun, PipelineRun, PipelineRunTimes};
use tokio::sync::{oneshot, watch};

use super::*;
use crate::scheduling::instance::{FinishedRun, InferError};
use crate::scheduling::queue::{JobInputs, QueueLimits};
use crate::scheduling::terms::RunTerms;

/// Never run: these tests check only the order of runs.
struct Unrun(ModelSignature);

impl Backend for Unrun {
    fn runtime(&self) -> Runtime {
        Runtime::OnnxRuntime
    }

    fn signature(&self) -> &ModelSignature {
        &self.0
    }

    fn run(&mut self, _: &[Tensor], _: &[usize], _: RunContext) -> Result<RunResult, ModelRunError> {
        Ok(RunResult::default())
    }
}

impl RunPipeline for Unrun {
    fn run_work(&mut self, _: &dyn Pipeline, _: PipelineRun<'_>, _: RunContext) -> FinishedPipelineRun {
        self.finish(Duration::ZERO)
    }

    fn finish(&mut self, _: Duration) -> FinishedPipelineRun {
        FinishedPipelineRun { result: Ok(RunResult::default()), times: PipelineRunTimes::default() }
    }
}

struct Silent;

impl RunObserver for Silent {
    fn executed(&self, _: usize, _: ComputeTime, _: Duration) {}

    fn prepared(&self, _: Duration) {}

    fn crashed(&self, _: &str, _: Option<&str>) {}

    fn cancelled(&self) {}

    fn refused(&self, _: &Principal, _: Duration) {}

    fn start(&self) {}
}

type ScheduledRun = oneshot::Receiver<Result<FinishedRun, InferError>>;

struct SchedulerMachine {
    state: SchedulerState,
    start: Instant,
    alive: watch::Sender<()>,
    kept: Vec<ScheduledRun>,
}

const MS: Duration = Duration::from_millis(1);

/// The background worker of a machine with one core.
const BACK: usize = 1;

impl ScheduledModel {
    /// As before the first run.
    fn forget_runs(&mut self) {
        (self.average_cpu, self.is_short) = (None, false);
    }
}

impl SchedulerMachine {
    /// A machine of this many cores, with all its workers asleep.
    fn new(cores: usize) -> Self {
        let (alive, start) = (watch::Sender::new(()), Instant::now());
        let mut state = SchedulerState::new(cores, None);
        for worker in 0..2 * cores {
            assert!(matches!(state.next(worker, start), WorkerAction::Sleep(None)));
        }
        Self { state, start, alive, kept: Vec::new() }
    }

    fn instance(&self) -> ModelInstance {
        ModelInstance {
            backend: Box::new(Unrun(ModelSignature::default())),
            last_core: 0,
            last_used: self.start,
            bytes: 100,
            observer: Arc::new(Silent),
            faults: Arc::default(),
            alive: AliveToken { of_model: self.alive.subscribe(), of_engine: self.alive.subscribe() },
        }
    }

    /// A model with runs that are known to be short.
    fn model(&mut self, instances: usize, threads: usize, max: usize) -> u64 {
        let keep_alive = Some(Duration::from_secs(10));
        let scale = InstanceScale { min: 1, max, threads, target_queue_time: 10 * MS, keep_alive };
        let cores = (0..self.state.cores()).collect();
        let queue = JobQueue::new(QueueLimits { jobs: 100, bytes: 1 << 20 });
        let mut entry = ScheduledModel::new(queue, scale, None, cores, self.start);
        entry.instances = instances;
        entry.bytes_each = 100;
        entry.steady = true;
        (entry.average_cpu, entry.is_short) = (Some(MS), true);
        entry.idle = (0..instances).map(|_| self.instance()).collect();
        self.state.add(entry)
    }

    fn offer(&mut self, model: u64, priority: Priority, at: Duration) -> Option<usize> {
        let (reply, receiver) = oneshot::channel();
        self.kept.push(receiver);
        let queued = self.start + at;
        let deadline = queued + Duration::from_mins(1);
        let terms = RunTerms { deadline, priority, principal: Principal::Local };
        self.state.offer(
            model,
            InferJob {
                inputs: JobInputs::Tensors(vec![]),
                outputs: vec![],
                rows: 1,
                terms,
                queued,
                is_second_try: false,
                unexplained_ends: 0,
                reply,
            },
        )
    }

    /// Wakes a worker at `at`, and returns the task that it takes.
    fn wake(&mut self, worker: usize, at: Duration) -> Option<WorkerTask> {
        self.state.mark_awake(worker);
        match self.state.next(worker, self.start + at) {
            WorkerAction::Run(task) => Some(task),
            WorkerAction::Sleep(_) => None,
        }
    }

    fn done(&mut self, worker: usize, task: WorkerTask, spent: Duration) {
        let end = task.taken + spent;
        self.state.finish_run(worker, task.model, task.instance, &task.reserved, spent, end);
    }
}

#[test]
fn a_job_wakes_a_sleeping_worker_that_takes_it() {
    let mut machine = SchedulerMachine::new(2);
    let model = machine.model(1, 1, 2);
    assert_eq!(machine.offer(model, Priority::Interactive, MS), Some(0));
    let task = machine.wake(0, MS).unwrap();
    assert_eq!((task.model, task.jobs.len(), task.reserved.len()), (model, 1, 0));
    // The only instance runs, so no worker is woken.
    assert_eq!(machine.offer(model, Priority::Interactive, MS), None);
    machine.done(0, task, MS);
    assert!(machine.wake(0, 2 * MS).is_some());
}

#[test]
fn interactive_goes_before_batch_whatever_came_first() {
    let mut machine = SchedulerMachine::new(1);
    let (a, b) = (machine.model(1, 1, 1), machine.model(1, 1, 1));
    machine.state.record_cpu(b, 10_000 * MS);
    machine.offer(a, Priority::Batch, MS);
    machine.offer(b, Priority::Interactive, 2 * MS);
    let first = machine.wake(BACK, 3 * MS).unwrap();
    assert_eq!(first.model, b);
    machine.done(BACK, first, MS);
    assert_eq!(machine.wake(BACK, 4 * MS).unwrap().model, a);
}

#[test]
fn a_core_runs_a_short_interactive_job_beside_a_job_of_the_background() {
    let mut machine = SchedulerMachine::new(1);
    let (short, long, new) = (machine.model(2, 1, 2), machine.model(1, 1, 1), machine.model(1, 1, 1));
    machine.state.record_cpu(long, 10_000 * MS);
    machine.state.model(new).unwrap().forget_runs();
    assert_eq!(machine.offer(long, Priority::Interactive, MS), Some(BACK));
    assert!(machine.wake(0, MS).is_none(), "the foreground is for short runs");
    let first = machine.wake(BACK, MS).unwrap();
    assert_eq!(machine.offer(short, Priority::Interactive, 2 * MS), Some(0));
    let beside = machine.wake(0, 2 * MS).unwrap();
    assert_eq!((first.model, beside.model), (long, short));

    // A batch job of a short model waits for the background, and so does a model without a measured run.
    assert_eq!(machine.offer(short, Priority::Batch, 3 * MS), None);
    assert_eq!(machine.offer(new, Priority::Interactive, 3 * MS), None);
    machine.done(0, beside, MS);
    assert!(machine.wake(0, 4 * MS).is_none());
    machine.done(BACK, first, 100 * MS);
    let next = machine.wake(BACK, 101 * MS).unwrap();
    assert_eq!(next.model, new);
    machine.done(BACK, next, MS);
    assert_eq!(machine.wake(BACK, 102 * MS).unwrap().model, short);
}

#[test]
fn a_job_that_waits_while_its_model_changes_its_tier_is_not_forgotten() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 1);
    machine.state.model(model).unwrap().forget_runs();
    assert_eq!(machine.offer(model, Priority::Interactive, MS), Some(BACK));
    let first = machine.wake(BACK, MS).unwrap();
    assert_eq!(machine.offer(model, Priority::Interactive, MS), None, "its only instance runs");
    machine.state.record_cpu(model, MS);
    machine.done(BACK, first, MS);
    assert!(machine.wake(BACK, 2 * MS).is_none());
    let now = machine.start + 2 * MS;
    assert_eq!(machine.state.worker_to_wake(Some(BACK), now), Some(0));
    let second = machine.wake(0, 2 * MS).unwrap();
    assert_eq!(machine.state.worker_to_wake(Some(0), now), None);
    machine.done(0, second, MS);
}

#[test]
fn a_model_changes_its_tier_only_when_its_runs_become_much_longer_or_shorter() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 1);
    let mut settle = |run: Duration| {
        (0..64).for_each(|_| machine.state.record_cpu(model, run));
        machine.state.model(model).unwrap().tier(Priority::Interactive)
    };
    for (ms, tier) in [(9, Tier::Foreground), (14, Tier::Foreground), (16, Tier::Background), (11, Tier::Background)] {
        assert_eq!(settle(ms * MS), tier, "{ms} ms");
    }
    assert_eq!(settle(9 * MS), Tier::Foreground);
}

#[test]
fn a_batch_that_forms_while_its_model_changes_its_tier_is_waited_for() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 1);
    let entry = machine.state.model(model).unwrap();
    entry.forget_runs();
    entry.batching = Some(BatchPolicy::powers_of_two(8, 10 * MS));
    machine.offer(model, Priority::Interactive, Duration::ZERO);
    let first = machine.wake(BACK, 10 * MS).unwrap();
    assert_eq!(machine.offer(model, Priority::Interactive, 11 * MS), None, "its only instance runs");
    machine.state.record_cpu(model, MS);
    machine.done(BACK, first, MS);
    assert!(machine.wake(BACK, 12 * MS).is_none());
    assert_eq!(machine.state.worker_to_wake(Some(BACK), machine.start + 12 * MS), Some(0));
    assert!(machine.wake(0, 12 * MS).is_none(), "others may still join");
    assert!(machine.wake(0, 21 * MS).is_some());
}

#[test]
fn a_model_changes_its_tier_with_the_average_of_its_runs() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 1);
    machine.state.record_cpu(model, 50 * MS);
    assert_eq!(machine.offer(model, Priority::Interactive, MS), Some(0), "one slow run is not the rule");
    let task = machine.wake(0, MS).unwrap();
    machine.done(0, task, MS);
    for _ in 0..4 {
        machine.state.record_cpu(model, 50 * MS);
    }
    assert_eq!(machine.offer(model, Priority::Interactive, MS), Some(BACK));
}

#[test]
fn a_short_run_needs_no_worker_while_the_background_is_busy() {
    let mut machine = SchedulerMachine::new(1);
    let (brief, long) = (machine.model(1, 1, 1), machine.model(1, 1, 1));
    machine.state.record_run(brief, 100, Duration::from_micros(20));
    machine.state.record_cpu(long, 10_000 * MS);
    machine.offer(long, Priority::Interactive, MS);
    let _running = machine.wake(BACK, MS).unwrap();
    machine.offer(long, Priority::Interactive, MS);
    let (_, worker) = machine.state.take_inline(brief, 100, None).unwrap();
    assert_eq!(worker, 0);
}

#[test]
fn models_share_core_time_not_turns() {
    let mut machine = SchedulerMachine::new(1);
    let (slow, fast) = (machine.model(1, 1, 1), machine.model(1, 1, 1));
    let mut time = [0_u32; 2];
    for step in 0..200 {
        machine.offer(slow, Priority::Interactive, MS);
        for _ in 0..10 {
            machine.offer(fast, Priority::Interactive, MS);
        }
        let task = machine.wake(0, step * MS).unwrap();
        let (index, spent) = if task.model == slow { (0, 9) } else { (1, 1) };
        time[index] += spent;
        machine.done(0, task, spent * MS);
    }
    assert!(time[0].abs_diff(time[1]) <= 18, "{time:?}");
}

#[test]
fn idleness_is_not_saved_up() {
    let mut machine = SchedulerMachine::new(1);
    let (busy, late) = (machine.model(1, 1, 1), machine.model(1, 1, 1));
    for _ in 0..50 {
        machine.offer(busy, Priority::Interactive, MS);
        let task = machine.wake(0, MS).unwrap();
        machine.done(0, task, 100 * MS);
    }
    let mut turns = Vec::new();
    for _ in 0..8 {
        machine.offer(busy, Priority::Interactive, MS);
        machine.offer(late, Priority::Interactive, MS);
        let task = machine.wake(0, MS).unwrap();
        turns.push(task.model);
        machine.done(0, task, 100 * MS);
    }
    assert!(turns.iter().filter(|&&model| model == busy).count() >= 3, "{turns:?}");
}

#[test]
fn a_run_on_two_cores_waits_for_both_and_is_not_overtaken() {
    let mut machine = SchedulerMachine::new(2);
    let (long, wide) = (machine.model(2, 1, 2), machine.model(1, 2, 1));
    machine.state.record_cpu(long, 10_000 * MS);
    machine.offer(long, Priority::Interactive, MS);
    let running = machine.wake(2, MS).unwrap();
    machine.offer(wide, Priority::Interactive, MS);
    assert!(machine.wake(3, MS).is_none(), "one core is busy");
    machine.offer(long, Priority::Interactive, MS);
    machine.done(2, running, MS);
    let task = machine.wake(2, 2 * MS).unwrap();
    assert_eq!((task.model, task.reserved.as_slice()), (wide, &[3][..]));
    assert!(machine.state.is_reserved(3) && !machine.state.is_reserved(1));
    machine.done(2, task, MS);
    assert!(!machine.state.is_reserved(3));
    assert_eq!(machine.state.worker_to_wake(None, machine.start + 3 * MS), Some(3));
}

#[test]
fn jobs_that_wait_while_a_core_is_free_get_another_instance_after_a_while() {
    let mut machine = SchedulerMachine::new(2);
    let model = machine.model(1, 1, 2);
    machine.offer(model, Priority::Interactive, MS);
    let task = machine.wake(0, MS).unwrap();
    machine.offer(model, Priority::Interactive, 2 * MS);
    let start = machine.start;
    assert!(!machine.state.wants_instance(model, start + 2 * MS));
    assert!(!machine.state.wants_instance(model, start + 11 * MS));
    assert!(machine.state.wants_instance(model, start + 12 * MS));
    assert!(!machine.state.wants_instance(model, start + 30 * MS), "one is being loaded");
    machine.done(0, task, MS);
}

#[test]
fn a_queue_that_short_runs_never_empty_gets_another_instance_and_one_that_they_empty_does_not() {
    for (waiting, expected) in [(1, None), (2, Some(3))] {
        let mut machine = SchedulerMachine::new(2);
        let model = machine.model(1, 1, 2);
        for _ in 0..waiting {
            machine.offer(model, Priority::Interactive, Duration::ZERO);
        }
        // Each run takes 4 ms, and its caller calls again at once.
        let grown = (0..10).find(|run| {
            let task = machine.wake(0, 4 * run * MS).unwrap();
            machine.offer(model, Priority::Interactive, 4 * run * MS);
            let wants = machine.state.wants_instance(model, machine.start + 4 * run * MS);
            machine.done(0, task, 4 * MS);
            wants
        });
        assert_eq!(grown, expected, "{waiting} waiting");
    }
}

#[test]
fn without_a_free_core_another_instance_would_not_help() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 2);
    machine.offer(model, Priority::Interactive, MS);
    let _running = machine.wake(0, MS).unwrap();
    machine.offer(model, Priority::Interactive, MS);
    let start = machine.start;
    assert!(!machine.state.wants_instance(model, start + MS));
    assert!(!machine.state.wants_instance(model, start + 100 * MS));
}

#[test]
fn a_model_that_gave_its_memory_back_is_loaded_at_the_next_call() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 1);
    let (given_up, again) = machine.state.expired(machine.start + 9 * Duration::from_secs(1));
    assert!(given_up.is_empty() && again.is_some());
    let (given_up, again) = machine.state.expired(machine.start + Duration::from_secs(10));
    assert_eq!((given_up.len(), again), (1, None));
    assert_eq!(machine.offer(model, Priority::Interactive, Duration::from_secs(11)), None);
    assert!(machine.state.wants_instance(model, machine.start + Duration::from_secs(11)));
}

#[test]
fn an_instance_above_the_minimum_goes_after_a_minute_unused_and_the_minimum_stays() {
    let mut machine = SchedulerMachine::new(2);
    let model = machine.model(2, 1, 2);
    machine.state.model(model).unwrap().scale.keep_alive = None;
    let (given_up, _) = machine.state.expired(machine.start + Duration::from_secs(59));
    assert!(given_up.is_empty());
    let (given_up, again) = machine.state.expired(machine.start + Duration::from_secs(61));
    assert_eq!((given_up.len(), again), (1, None));
}

#[test]
fn a_model_with_no_minimum_is_unloaded_after_a_minute_and_loaded_by_the_next_call() {
    let mut machine = SchedulerMachine::new(2);
    let model = machine.model(1, 1, 2);
    let scale = &mut machine.state.model(model).unwrap().scale;
    (scale.min, scale.keep_alive) = (0, None);
    let (given_up, again) = machine.state.expired(machine.start + Duration::from_secs(61));
    assert_eq!((given_up.len(), again), (1, None));
    assert!(!machine.state.wants_instance(model, machine.start + Duration::from_secs(61)), "no call waits");
    assert_eq!(machine.offer(model, Priority::Interactive, Duration::from_secs(62)), None);
    assert!(machine.state.wants_instance(model, machine.start + Duration::from_secs(62)));
}

#[test]
fn memory_is_taken_from_who_was_used_least_recently_and_is_not_in_use() {
    let mut machine = SchedulerMachine::new(1);
    let models: Vec<u64> = (0..3).map(|_| machine.model(1, 1, 1)).collect();
    for (place, &model) in models.iter().enumerate() {
        machine.offer(model, Priority::Interactive, u32::try_from(place).unwrap() * MS);
        let task = machine.wake(0, Duration::from_secs(1)).unwrap();
        if place < 2 {
            machine.done(0, task, MS);
        }
    }
    assert_eq!(machine.state.bytes(), 300);
    // The first was used least recently, the second is to be kept, the third is running.
    assert_eq!(machine.state.least_recently_used(models[1]).map(|given_up| given_up.len()), Some(1));
    assert!(machine.state.least_recently_used(models[1]).is_none());
    assert_eq!(machine.state.bytes(), 200);
}

#[test]
fn the_memory_of_one_instance_is_known_whatever_became_of_the_instances() {
    let mut machine = SchedulerMachine::new(4);
    let models = [machine.model(1, 1, 4), machine.model(4, 1, 4), machine.model(1, 1, 1)];
    let figures = |machine: &mut SchedulerMachine, model| {
        let InstanceUsage { instances, bytes, bytes_each, .. } = machine.state.model(model).unwrap().instance_usage();
        (instances, bytes, bytes_each)
    };
    assert_eq!(figures(&mut machine, models[0]), (1, 100, 100));
    assert_eq!(figures(&mut machine, models[1]), (4, 400, 100));
    // Given up for another model, and after a while without use.
    machine.state.least_recently_used(models[1]).unwrap();
    assert_eq!(figures(&mut machine, models[0]), (0, 0, 100));
    machine.state.expired(machine.start + Duration::from_secs(10));
    assert_eq!(figures(&mut machine, models[2]), (0, 0, 100));
}

#[test]
fn a_run_that_is_known_to_be_brief_needs_no_worker() {
    let mut machine = SchedulerMachine::new(2);
    let model = machine.model(1, 1, 2);
    let brief = Duration::from_micros(20);
    assert!(machine.state.take_inline(model, 100, None).is_none(), "nothing is known yet");
    machine.state.record_run(model, 100, brief);
    let (instance, worker) = machine.state.take_inline(model, 100, None).unwrap();
    assert!(machine.state.is_reserved(worker), "the core is taken");
    assert!(machine.state.take_inline(model, 100, None).is_none(), "its only instance runs");
    let end = machine.start + brief;
    assert!(machine.state.finish_inline_run(worker, model, instance, brief, end).is_none());
    let (instance, worker) = machine.state.take_inline(model, 100, Some(1)).unwrap();
    assert_eq!(worker, 1, "the core of the caller");
    assert!(machine.state.finish_inline_run(worker, model, instance, brief, end).is_none());
    assert!(!machine.state.is_reserved(worker));
    assert!(machine.state.take_inline(model, 101, None).is_none(), "larger inputs may take longer");
    machine.offer(model, Priority::Interactive, MS);
    assert!(machine.state.take_inline(model, 100, None).is_none(), "others wait already");
}

#[test]
fn a_model_that_wants_batches_leaves_its_brief_runs_to_workers() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 1);
    machine.state.record_run(model, 100, Duration::from_micros(20));
    machine.state.model(model).unwrap().batching = Some(BatchPolicy::powers_of_two(8, Duration::ZERO));
    assert!(machine.state.take_inline(model, 100, None).is_none());
    machine.state.model(model).unwrap().batching = None;
    assert!(machine.state.take_inline(model, 100, None).is_some());
}

#[test]
fn runs_that_became_long_go_to_a_worker_again() {
    let mut machine = SchedulerMachine::new(1);
    let model = machine.model(1, 1, 1);
    machine.state.record_run(model, 100, Duration::from_micros(20));
    machine.state.record_run(model, 100, Duration::from_millis(1));
    assert!(machine.state.take_inline(model, 100, None).is_none());
    for _ in 0..40 {
        machine.state.record_run(model, 100, Duration::from_micros(20));
    }
    assert!(machine.state.take_inline(model, 100, None).is_some());
}

/// The spare worker of a machine with two cores.
const SPARE: usize = 4;

#[test]
fn the_spare_worker_runs_other_models_while_long_runs_hold_every_core() {
    let mut machine = SchedulerMachine::new(2);
    let (endless, other) = (machine.model(3, 1, 3), machine.model(1, 1, 1));
    machine.offer(endless, Priority::Interactive, MS);
    machine.offer(endless, Priority::Interactive, MS);
    let held = [0, 1].map(|worker| machine.wake(worker, MS).unwrap());
    assert_eq!(machine.offer(other, Priority::Interactive, MS), None);
    assert!(machine.wake(SPARE, MS).is_none(), "the runs may end soon");
    assert_eq!(machine.state.begin_long_run(endless, 0, 1), None);
    assert_eq!(machine.state.begin_long_run(endless, 1, 1), Some(SPARE));

    // The model with the long runs waits, although it has another instance.
    machine.offer(endless, Priority::Interactive, 2 * MS);
    let task = machine.wake(SPARE, 2 * MS).unwrap();
    assert_eq!((task.model, task.reserved.len()), (other, 0));
    assert!(machine.wake(SPARE, 2 * MS).is_none());
    machine.done(SPARE, task, MS);
    assert_eq!(machine.offer(other, Priority::Interactive, 3 * MS), Some(SPARE));
    // The background is not held up.
    assert_eq!(machine.offer(other, Priority::Batch, 3 * MS), Some(2));

    machine.state.end_long_run(endless, 1, 1);
    assert!(machine.wake(SPARE, 4 * MS).is_none(), "a core will be free");
    let [first, _second] = held;
    machine.done(0, first, 10 * MS);
    assert_eq!(machine.wake(0, 5 * MS).unwrap().model, other);
}

#[test]
fn a_long_run_on_all_cores_leaves_the_spare_worker_to_others() {
    let mut machine = SchedulerMachine::new(2);
    let (wide, other) = (machine.model(1, 2, 1), machine.model(1, 1, 1));
    machine.state.record_cpu(other, 10_000 * MS);
    machine.offer(wide, Priority::Interactive, MS);
    let task = machine.wake(2, MS).unwrap();
    let cores = task.reserved.len() + 1;
    machine.offer(other, Priority::Interactive, MS);
    assert_eq!(machine.state.begin_long_run(wide, 2, cores), Some(SPARE));
    assert_eq!(machine.wake(SPARE, MS).unwrap().model, other);
}

#[test]
fn the_last_core_is_told_from_the_others() {
    let mut machine = SchedulerMachine::new(2);
    machine.state.begin_overdue_run(0, 1);
    assert!(!machine.state.is_overdue_everywhere(0));
    // That of the spare worker holds none, and those of the background are others.
    machine.state.begin_overdue_run(SPARE, 0);
    machine.state.begin_overdue_run(2, 1);
    assert!(!machine.state.is_overdue_everywhere(0));
    machine.state.begin_overdue_run(1, 1);
    assert!(machine.state.is_overdue_everywhere(0) && !machine.state.is_overdue_everywhere(2));
    machine.state.end_overdue_run(1, 1);
    assert!(!machine.state.is_overdue_everywhere(0));
}
