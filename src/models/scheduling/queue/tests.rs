use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::scheduling::outcome::FinishedRun;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::DataType;
use ledge_engine::backend::{ModelPort, ModelSignature};
use ledge_engine::pipeline::content::{CallContent, PipelineInput, Texts};
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_engine::pipeline::work::PipelineRunInput;

type QueuedRun = oneshot::Receiver<Result<FinishedRun, InferError>>;

const LONG_DEADLINE: Duration = Duration::from_mins(10);
const WIDE_LIMITS: QueueLimits = QueueLimits { jobs: 1000, bytes: 1 << 30 };

struct Maker {
    now: Instant,
    kept: Vec<QueuedRun>,
}

impl Maker {
    fn new() -> Self {
        Self { now: Instant::now(), kept: Vec::new() }
    }

    fn job(&self, who: u32, rows: usize, tag: f32, deadline: Duration, priority: Priority) -> (InferJob, QueuedRun) {
        let (reply, receiver) = oneshot::channel();
        let terms = RunTerms { deadline: self.now + deadline, priority, principal: Principal::User(who) };
        let inputs = vec![Tensor::from_vec::<f32>(vec![rows, 1], vec![tag; rows]).unwrap()];
        (
            InferJob {
                inputs: JobInputs::Tensors(inputs),
                outputs: vec![0],
                rows,
                terms,
                queued: self.now,
                is_second_try: false,
                unexplained_ends: 0,
                reply,
            },
            receiver,
        )
    }

    /// A job with a caller that waits to the end.
    fn stays(&mut self, who: u32, rows: usize, tag: f32) -> InferJob {
        let (job, receiver) = self.job(who, rows, tag, LONG_DEADLINE, Priority::Interactive);
        self.kept.push(receiver);
        job
    }
}

fn photograph() -> PipelineInputs {
    let config = serde_json::from_str(r#"{"image_classification": {"crop": [2, 2]}}"#).unwrap();
    let port =
        |name: &str, shape: &[i64]| ModelPort { name: name.into(), datatype: DataType::Fp32, shape: shape.into() };
    let signature = ModelSignature { inputs: vec![port("x", &[1, 3, 2, 2])], outputs: vec![port("y", &[1, 2])] };
    let setup = PipelineSetup { signature, ..PipelineSetup::new(&config, &[]).unwrap() };
    PipelineInputs {
        pipeline: setup.bind().unwrap(),
        input: PipelineRunInput::Content {
            content: PipelineInput::Photograph.sample(),
            limits: DecodeLimits::default(),
        },
        account: MemoryAccount::unlimited(),
        own: 0,
    }
}

fn tag(job: &InferJob) -> f32 {
    job.tensors().unwrap()[0].elements::<f32>().unwrap()[0]
}

fn take(queue: &mut JobQueue, policy: Option<&BatchPolicy>, now: Instant) -> Vec<f32> {
    queue.take(Priority::Interactive, policy, now).iter().map(tag).collect()
}

fn bytes(queue: &JobQueue) -> usize {
    queue.levels.iter().map(|level| level.bytes).sum()
}

fn is_refused(receiver: &mut QueuedRun) -> bool {
    matches!(receiver.try_recv(), Ok(Err(InferError::Overloaded { .. })))
}

#[test]
fn a_full_queue_refuses_at_once_and_says_how_deep_it_is() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 2, bytes: 1 << 20 });
    for tag in [1.0, 2.0] {
        queue.offer(maker.stays(1, 1, tag));
    }
    let (job, mut receiver) = maker.job(1, 1, 3.0, LONG_DEADLINE, Priority::Interactive);
    queue.offer(job);
    assert!(matches!(receiver.try_recv(), Ok(Err(InferError::Overloaded { depth: 2 }))));
    // Each priority has its own room.
    let (job, mut receiver) = maker.job(1, 1, 3.0, LONG_DEADLINE, Priority::Batch);
    queue.offer(job);
    assert!(receiver.try_recv().is_err());
    assert_eq!(queue.len(), 3);
}

#[test]
fn bytes_bound_a_queue_too_but_one_large_input_gets_in() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 100, bytes: 40 });
    queue.offer(maker.stays(1, 100, 1.0));
    assert_eq!(queue.len(), 1);
    let (job, mut refused) = maker.job(1, 1, 2.0, LONG_DEADLINE, Priority::Interactive);
    queue.offer(job);
    assert!(is_refused(&mut refused));
    assert_eq!(take(&mut queue, None, maker.now), [1.0]);
    for tag in 0..10 {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        queue.offer(maker.stays(1, 1, tag as f32));
    }
    assert_eq!(queue.len(), 10);
}

#[test]
fn callers_that_left_make_room_and_are_never_run() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 2, bytes: 1 << 20 });
    let (first, left) = maker.job(1, 1, 1.0, LONG_DEADLINE, Priority::Interactive);
    queue.offer(first);
    queue.offer(maker.stays(1, 1, 2.0));
    drop(left);
    queue.offer(maker.stays(1, 1, 3.0));
    assert_eq!(take(&mut queue, None, maker.now), [2.0]);
    assert_eq!(take(&mut queue, None, maker.now), [3.0]);
    assert_eq!((queue.len(), bytes(&queue)), (0, 0));
}

#[test]
fn a_job_past_its_deadline_is_dropped_unrun() {
    let maker = Maker::new();
    let mut queue = JobQueue::new(WIDE_LIMITS);
    let (late, mut receiver) = maker.job(1, 1, 1.0, Duration::ZERO, Priority::Interactive);
    queue.offer(late);
    assert_eq!(queue.due(Priority::Interactive, None, maker.now), BatchDue::Never);
    assert_eq!(receiver.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    assert_eq!((queue.len(), bytes(&queue)), (0, 0));
}

#[test]
fn one_caller_that_floods_a_model_delays_itself_alone() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(WIDE_LIMITS);
    for tag in [1.0, 2.0, 3.0, 4.0] {
        queue.offer(maker.stays(1, 1, tag));
    }
    queue.offer(maker.stays(2, 1, 10.0));
    queue.offer(maker.stays(2, 1, 11.0));
    let order: Vec<f32> = (0..6).flat_map(|_| take(&mut queue, None, maker.now)).collect();
    assert_eq!(order, [1.0, 10.0, 2.0, 11.0, 3.0, 4.0]);
}

#[test]
fn in_a_full_queue_the_newcomer_takes_the_place_of_who_holds_most() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 3, bytes: 1 << 20 });
    let mut noisy: Vec<QueuedRun> = Vec::new();
    for tag in [1.0, 2.0, 3.0] {
        let (job, receiver) = maker.job(1, 1, tag, LONG_DEADLINE, Priority::Interactive);
        queue.offer(job);
        noisy.push(receiver);
    }
    queue.offer(maker.stays(2, 1, 10.0));
    assert!(is_refused(&mut noisy[2]) && !is_refused(&mut noisy[1]));
    // Two to one is fair enough.
    let (job, mut second) = maker.job(2, 1, 11.0, LONG_DEADLINE, Priority::Interactive);
    queue.offer(job);
    assert!(is_refused(&mut second));
}

#[test]
fn a_refusal_can_be_told_before_the_job_is_there() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 2, bytes: 1 << 20 });
    let (noisy, quiet) = (Principal::User(1), Principal::User(2));
    assert_eq!(queue.refusal(Priority::Interactive, &noisy), None);
    for tag in [1.0, 2.0] {
        queue.offer(maker.stays(1, 1, tag));
    }
    assert_eq!(queue.refusal(Priority::Interactive, &noisy), Some(2));
    assert_eq!(queue.refusal(Priority::Interactive, &quiet), None, "it would take a place of the other");
    assert_eq!(queue.refusal(Priority::Batch, &noisy), None);
}

#[test]
fn background_work_takes_no_room_from_interactive_work() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 10, bytes: 40 });
    let (job, mut background) = maker.job(1, 10, 1.0, LONG_DEADLINE, Priority::Batch);
    queue.offer(job);
    queue.offer(maker.stays(2, 10, 2.0));
    assert!(!is_refused(&mut background));
    assert_eq!(queue.len(), 2);
}

#[test]
fn nobody_is_displaced_for_a_newcomer_that_does_not_fit_all_the_same() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 100, bytes: 400 });
    // One caller holds 40 bytes in ten jobs, another 200 in one.
    for tag in [1.0; 10] {
        queue.offer(maker.stays(1, 1, tag));
    }
    queue.offer(maker.stays(2, 50, 2.0));
    let (job, mut large) = maker.job(3, 75, 3.0, LONG_DEADLINE, Priority::Interactive);
    queue.offer(job);
    assert!(is_refused(&mut large));
    assert_eq!(queue.len(), 11);
    // A small one does fit.
    queue.offer(maker.stays(3, 40, 3.0));
    assert_eq!((queue.len(), bytes(&queue)), (12, 400));
}

#[test]
fn who_holds_most_bytes_makes_room_for_a_smaller_newcomer() {
    let mut maker = Maker::new();
    let mut queue = JobQueue::new(QueueLimits { jobs: 100, bytes: 400 });
    for tag in [1.0, 2.0, 3.0, 4.0] {
        queue.offer(maker.stays(1, 25, tag));
    }
    queue.offer(maker.stays(2, 30, 9.0));
    assert_eq!((queue.len(), bytes(&queue)), (3, 320));
    assert_eq!(queue.take_dropped().len(), 2);
    let order: Vec<f32> = (0..3).flat_map(|_| take(&mut queue, None, maker.now)).collect();
    assert_eq!(order, [1.0, 9.0, 2.0]);
}

#[test]
fn photographs_wait_for_one_another_and_texts_for_nothing() {
    let mut maker = Maker::new();
    let (delay, level) = (Duration::from_millis(5), Priority::Interactive);
    let policy = BatchPolicy::powers_of_two(4, delay);
    let mut queue = JobQueue::new(WIDE_LIMITS);
    let shared = photograph();
    let mut photograph = |caller| {
        let mut job = maker.stays(caller, 1, 1.0);
        let PipelineInputs { pipeline, input, account, own } = &shared;
        job.inputs = JobInputs::Raw(PipelineInputs {
            pipeline: pipeline.clone(),
            input: input.clone(),
            account: account.clone(),
            own: *own,
        });
        job
    };
    let one = photograph(1);
    assert_eq!(one.bytes(), PipelineInput::Photograph.sample().bytes());
    let now = one.queued;
    queue.offer(one);
    assert_eq!(queue.due(level, Some(&policy), now), BatchDue::At(now + delay));
    queue.offer(photograph(2));
    assert_eq!(queue.take(level, Some(&policy), now).len(), 2);

    // Tensors do not join it.
    queue.offer(photograph(1));
    queue.offer(maker.stays(2, 1, 2.0));
    assert_eq!(queue.take(level, Some(&policy), now).len(), 1);
    queue.drain();

    let mut text = maker.stays(1, 1, 1.0);
    let content = CallContent::Texts(Texts::one(b"a").unwrap());
    text.inputs = JobInputs::Raw(PipelineInputs {
        input: PipelineRunInput::Content { content, limits: DecodeLimits::default() },
        ..self::photograph()
    });
    queue.offer(text);
    assert_eq!(queue.due(level, Some(&policy), maker.now), BatchDue::Now);
}

#[test]
fn a_batch_waits_for_its_delay_or_for_enough_rows() {
    let mut maker = Maker::new();
    let delay = Duration::from_millis(5);
    let policy = BatchPolicy::powers_of_two(4, delay);
    let mut queue = JobQueue::new(WIDE_LIMITS);
    queue.offer(maker.stays(1, 1, 1.0));
    let (now, level) = (maker.now, Priority::Interactive);
    assert_eq!(queue.due(level, Some(&policy), now), BatchDue::At(now + delay));
    assert_eq!(queue.due(level, Some(&policy), now + delay), BatchDue::Now);
    queue.offer(maker.stays(2, 3, 2.0));
    assert_eq!(queue.due(level, Some(&policy), now), BatchDue::Now);
    assert_eq!(take(&mut queue, Some(&policy), now), [1.0, 2.0]);
}

#[test]
fn a_batch_has_a_size_that_was_warmed_up_and_equal_shapes_only() {
    let mut maker = Maker::new();
    let policy = BatchPolicy::powers_of_two(8, Duration::ZERO);
    let mut queue = JobQueue::new(WIDE_LIMITS);
    for tag in [1.0, 2.0, 3.0] {
        queue.offer(maker.stays(1, 1, tag));
    }
    assert_eq!(take(&mut queue, Some(&policy), maker.now), [1.0, 2.0]);
    let mut other = maker.stays(1, 1, 9.0);
    other.outputs = vec![];
    queue.offer(other);
    queue.offer(maker.stays(1, 1, 4.0));
    let runs: Vec<_> = (0..3).map(|_| take(&mut queue, Some(&policy), maker.now)).collect();
    assert_eq!(runs, [[3.0], [9.0], [4.0]]);
}

proptest! {
    /// For any jobs offered and taken: no job is lost or doubled, each caller's order is kept, no batch is above its
    /// limit, and the counts agree.
    #[test]
    fn every_job_is_run_once_and_in_its_callers_order(
        steps in proptest::collection::vec(prop_oneof![
            (1_u32..5, 0_usize..6).prop_map(Some),
            Just(None),
        ], 1..120),
        limit in 1_usize..9,
        batched in any::<bool>(),
    ) {
        let mut maker = Maker::new();
        let policy = batched.then(|| BatchPolicy::powers_of_two(limit, Duration::ZERO));
        let mut queue = JobQueue::new(WIDE_LIMITS);
        let (mut sent, mut run, mut number) = (0, Vec::new(), 0.0);
        let taken = |queue: &mut JobQueue, now| -> Result<Vec<(u32, f32)>, TestCaseError> {
            let jobs = queue.take(Priority::Interactive, policy.as_ref(), now);
            let rows: usize = jobs.iter().map(|job| job.rows).sum();
            prop_assert!(jobs.len() <= 1 || rows <= limit);
            prop_assert!(batched || jobs.len() <= 1);
            Ok(jobs.iter().map(|job| {
                let Principal::User(who) = job.terms.principal else { panic!("made above") };
                (who, job.tensors().unwrap()[0].elements::<f32>().unwrap().first().copied().unwrap_or(-1.0))
            }).collect())
        };
        for step in steps {
            match step {
                Some((who, rows)) => {
                    number += 1.0;
                    sent += 1;
                    queue.offer(maker.stays(who, rows, number));
                }
                None => run.extend(taken(&mut queue, maker.now)?),
            }
        }
        while !queue.is_empty() {
            let more = taken(&mut queue, maker.now)?;
            prop_assert!(!more.is_empty());
            run.extend(more);
        }
        prop_assert_eq!(run.len(), sent);
        prop_assert_eq!(bytes(&queue), 0);
        for caller in 1..5 {
            let order: Vec<f32> = run.iter().filter(|(who, tag)| *who == caller && *tag >= 0.0).map(|(_, tag)| *tag).collect();
            prop_assert!(order.is_sorted());
        }
    }
}
