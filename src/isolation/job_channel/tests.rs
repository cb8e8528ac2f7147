use super::*;
use std::os::fd::OwnedFd;

fn channel() -> (JobChannel, JobChannel) {
    let (memory, file): (SharedMemory, OwnedFd) = SharedMemory::create("test", LENGTH).unwrap();
    (JobChannel::new(memory), JobChannel::new(SharedMemory::map(&file, LENGTH).unwrap()))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// Answers `count` jobs after the job `last` with their own inputs.
fn echo(channel: &JobChannel, mut last: u32, count: usize) {
    let mut used = 0;
    for _ in 0..count {
        last = channel.next(last);
        let (places, is_first): (Vec<ByteRange>, bool) = channel.job_head(last).unwrap();
        let mut area = channel.answer(if is_first { 0 } else { used });
        let answer: Vec<ByteRange> =
            places.into_iter().map(|place| area.put(&channel.job_bytes(place).unwrap()).unwrap()).collect();
        used = channel.reply(last, area, &answer).unwrap();
    }
}

fn ask(channel: &JobChannel, parts: &[&[u8]]) -> u32 {
    ask_each(channel, &[parts]).pop().unwrap()
}

/// Gives several jobs in one hand-over, and returns their numbers.
fn ask_each(channel: &JobChannel, jobs: &[&[&[u8]]]) -> Vec<u32> {
    let mut area = channel.jobs();
    let mut numbers = Vec::new();
    for (position, parts) in jobs.iter().enumerate() {
        let places: Vec<ByteRange> = parts.iter().map(|part| area.put(part).unwrap()).collect();
        numbers.push(channel.add(&mut area, position, &places).unwrap());
    }
    channel.ask(*numbers.last().unwrap());
    numbers
}

/// The answer to a job.
fn answer(channel: &JobChannel, number: u32) -> Vec<Vec<u8>> {
    let places: Vec<ByteRange> = channel.answer_head(number).unwrap();
    places.iter().map(|place| channel.answer_bytes(*place).unwrap()).collect()
}

#[test]
fn each_job_gets_its_own_answer() {
    let (own, other) = channel();
    let child = std::thread::spawn(move || echo(&other, 0, 1000));
    for round in 0..1000_usize {
        let (first, second) = (vec![round.to_le_bytes()[0]; round * 7], round.to_le_bytes());
        let number = ask(&own, &[&first, &second]);
        own.wait(number, number, soon(), || false).unwrap();
        assert_eq!(answer(&own, number), [first, second.to_vec()], "{round}");
    }
    child.join().unwrap();
}

#[test]
fn jobs_of_one_hand_over_are_answered_in_order_each_with_its_own_answer() {
    let (own, other) = channel();
    let child = std::thread::spawn(move || echo(&other, 0, (1..=JOBS_MAX).sum::<usize>() * 50));
    for round in 0..50_usize {
        for count in 1..=JOBS_MAX {
            let texts: Vec<_> = (0..count).map(|job| format!("{round}, {job} of {count}")).collect();
            let parts: Vec<[&[u8]; 1]> = texts.iter().map(|text| [text.as_bytes()]).collect();
            let jobs: Vec<&[&[u8]]> = parts.iter().map(|part| &part[..]).collect();
            let numbers = ask_each(&own, &jobs);
            let last = *numbers.last().unwrap();
            // Sometimes in the middle first.
            let waits = [numbers[round % count], last];
            for number in waits {
                own.wait(number, last, soon(), || false).unwrap();
                assert_eq!(answer(&own, number), [texts[(number - numbers[0]) as usize].as_bytes()]);
            }
            for (number, text) in numbers.iter().zip(&texts) {
                assert_eq!(answer(&own, *number), [text.as_bytes()]);
            }
            assert_eq!(own.pending(), None);
        }
    }
    child.join().unwrap();
    let mut area = own.jobs();
    assert_eq!(own.add(&mut area, JOBS_MAX, &0), Err(JobChannelError::TooLarge));
}

#[test]
fn a_job_that_was_withdrawn_is_never_begun_and_its_number_is_used_again() {
    let (own, other) = channel();
    let mut last = 0;
    // Taken before the withdrawal, of three jobs.
    for taken in 0..=3_u32 {
        let numbers = ask_each(&own, &[&[b"first"], &[b"second"], &[b"third"]]);
        (0..taken).for_each(|_| last = other.next(last));
        assert_eq!(own.withdraw(numbers[2], 3), last);
        for number in &numbers[..taken as usize] {
            assert_eq!(own.wait(*number, last, Instant::now(), || false), Err(JobAnswerError::Late));
            assert_eq!(own.pending(), Some(*number));
            other.reply(*number, other.answer(0), &Vec::<ByteRange>::new()).unwrap();
            own.wait(*number, last, soon(), || false).unwrap();
        }
        assert_eq!(own.pending(), None);

        let next = ask(&own, &[b"next"]);
        assert_eq!(next, last + 1);
        echo(&other, last, 1);
        assert_eq!(answer(&own, next), [b"next"]);
        last = next;
    }
}

#[test]
fn withdrawals_while_the_other_side_works_lose_no_job_and_do_none_twice() {
    const JOBS: u32 = 20_000;
    let (own, other) = channel();
    let child = std::thread::spawn(move || {
        let (mut last, mut done) = (0, Vec::new());
        loop {
            last = other.next(last);
            let (job, _) = other.job_head::<u32>(last).unwrap();
            done.push(job);
            other.reply(last, other.answer(0), &job).unwrap();
            if job == JOBS {
                return done;
            }
        }
    });
    let mut next = 1;
    while next <= JOBS {
        let count = (JOBS + 1 - next).min(1 + next % 16);
        let mut area = own.jobs();
        let numbers: Vec<u32> =
            (0..count).map(|job| own.add(&mut area, job as usize, &(next + job)).unwrap()).collect();
        let last = *numbers.last().unwrap();
        own.ask(last);
        let kept = own.withdraw(last, count);
        let taken = count - last.wrapping_sub(kept);
        if taken > 0 {
            own.wait(kept, kept, soon(), || false).unwrap();
            assert_eq!(own.answer_head::<u32>(kept), Ok(next + taken - 1));
        }
        next += taken;
    }
    assert!(child.join().unwrap().into_iter().eq(1..=JOBS));
}

#[test]
fn an_answer_that_does_not_come_is_late_and_a_closed_channel_wakes_its_waiter() {
    let (own, _other) = channel();
    let number = ask(&own, &[b"x"]);
    assert_eq!(own.wait(number, number, Instant::now(), || false), Err(JobAnswerError::Late));
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (waiter, seen) = (own.clone(), closed.clone());
    let thread = std::thread::spawn(move || waiter.wait(number, number, soon(), || seen.load(Ordering::Acquire)));
    closed.store(true, Ordering::Release);
    own.close();
    assert_eq!(thread.join().unwrap(), Err(JobAnswerError::Closed));
}

#[test]
fn whatever_the_other_side_scribbles_is_an_error_or_a_value() {
    for byte in 0..=255 {
        let (own, other) = channel();
        let number = ask(&own, &[b"photograph"]);
        other.scribble(byte);
        let mut area = other.answer(0);
        let place = area.put(b"answer").unwrap();
        other.reply(number, area, &vec![place]).unwrap();
        other.scribble(byte);
        // The word of the answer may say anything too.
        own.memory.word(ANSWER).store(number, Ordering::Release);
        own.wait(number, number, soon(), || false).unwrap();
        if let Ok(places) = own.answer_head::<Vec<ByteRange>>(number) {
            for place in places {
                let _ = own.answer_bytes(place);
            }
        }
        // The channel works again for the next job.
        let next = ask(&own, &[b"next"]);
        echo(&other, number, 1);
        own.memory.word(ANSWER).store(next, Ordering::Release);
        own.wait(next, next, soon(), || false).unwrap();
    }
}

#[test]
fn places_outside_of_an_area_are_refused() {
    let (own, _other) = channel();
    for (offset, length) in [(AREA_BYTES, 1), (0, AREA_BYTES + 1), (usize::MAX, 2), (AREA_BYTES - 1, 2)] {
        assert_eq!(own.answer_bytes(ByteRange { offset, length }), Err(JobChannelError::Outside));
    }
    let mut area = own.jobs();
    area.put(b"1").unwrap();
    assert_eq!(area.used(), 1);
    area.used = AREA_BYTES - 3;
    assert_eq!(area.put(b"12345"), Err(JobChannelError::TooLarge));
}

#[test]
fn large_bytes_are_given_back() {
    let (own, other) = channel();
    let large = vec![7; KEPT_BYTES + (4 << 20)];
    let number = ask(&own, &[&large]);
    echo(&other, 0, 1);
    own.wait(number, number, soon(), || false).unwrap();
    assert!(answer(&own, number) == [large.clone()]);
    own.release(large.len(), large.len());
    let end = own.answer_bytes(ByteRange { offset: KEPT_BYTES + (2 << 20), length: 4 }).unwrap();
    assert_eq!(end, [0; 4]);
}
