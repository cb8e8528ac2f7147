use super::*;
use std::os::fd::OwnedFd;

fn lane() -> (Lane, Lane) {
    let (memory, file): (SharedMemory, OwnedFd) = SharedMemory::create("test", LENGTH).unwrap();
    (Lane::new(memory), Lane::new(SharedMemory::map(&file, LENGTH).unwrap()))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// Answers `count` jobs with what they brought.
fn echo(lane: &Lane, count: usize) {
    let mut last = 0;
    for _ in 0..count {
        last = lane.next(last);
        let places: Vec<Place> = lane.job_head().unwrap();
        let mut area = lane.answer();
        let answer: Vec<Place> =
            places.into_iter().map(|place| area.put(&lane.job_bytes(place).unwrap()).unwrap()).collect();
        lane.reply(last, area, &answer).unwrap();
    }
}

fn ask(lane: &Lane, parts: &[&[u8]]) -> u32 {
    let mut area = lane.job();
    let places: Vec<Place> = parts.iter().map(|part| area.put(part).unwrap()).collect();
    lane.ask(area, &places).unwrap()
}

#[test]
fn each_job_gets_its_own_answer() {
    let (own, other) = lane();
    let child = std::thread::spawn(move || echo(&other, 1000));
    for round in 0..1000_usize {
        let (first, second) = (vec![round.to_le_bytes()[0]; round * 7], round.to_le_bytes());
        let number = ask(&own, &[&first, &second]);
        own.wait(number, soon(), || false).unwrap();
        let places: Vec<Place> = own.answer_head().unwrap();
        let answer: Vec<_> = places.iter().map(|place| own.answer_bytes(*place).unwrap()).collect();
        assert_eq!(answer, [first, second.to_vec()], "{round}");
    }
    child.join().unwrap();
}

#[test]
fn an_answer_that_does_not_come_is_late_and_a_closed_lane_wakes_its_waiter() {
    let (own, _other) = lane();
    let number = ask(&own, &[b"x"]);
    assert_eq!(own.wait(number, Instant::now(), || false), Err(NoAnswer::Late));
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (waiter, seen) = (own.clone(), closed.clone());
    let thread = std::thread::spawn(move || waiter.wait(number, soon(), || seen.load(Ordering::Acquire)));
    closed.store(true, Ordering::Release);
    own.close();
    assert_eq!(thread.join().unwrap(), Err(NoAnswer::Closed));
}

#[test]
fn whatever_the_other_side_scribbles_is_an_error_or_a_value() {
    for byte in 0..=255 {
        let (own, other) = lane();
        let number = ask(&own, &[b"photograph"]);
        other.scribble(byte);
        let mut area = other.answer();
        let place = area.put(b"answer").unwrap();
        other.reply(number, area, &vec![place]).unwrap();
        other.scribble(byte);
        // The word of the answer may say anything too.
        own.memory.word(ANSWER).store(number, Ordering::Release);
        own.wait(number, soon(), || false).unwrap();
        if let Ok(places) = own.answer_head::<Vec<Place>>() {
            for place in places {
                let _ = own.answer_bytes(place);
            }
        }
        // The lane is as good as new for the next job.
        let next = ask(&own, &[b"next"]);
        echo(&other, 1);
        own.memory.word(ANSWER).store(next, Ordering::Release);
        own.wait(next, soon(), || false).unwrap();
    }
}

#[test]
fn places_outside_of_an_area_are_refused() {
    let (own, _other) = lane();
    for (offset, length) in [(AREA_BYTES, 1), (0, AREA_BYTES + 1), (usize::MAX, 2), (AREA_BYTES - 1, 2)] {
        assert_eq!(own.answer_bytes(Place { offset, length }), Err(LaneError::Outside));
    }
    let mut area = own.job();
    area.put(b"1").unwrap();
    assert_eq!(area.used(), 1);
    area.used = AREA_BYTES - 3;
    assert_eq!(area.put(b"12345"), Err(LaneError::TooLarge));
}

#[test]
fn large_bytes_are_given_back() {
    let (own, other) = lane();
    let large = vec![7; KEPT_BYTES + (4 << 20)];
    let number = ask(&own, &[&large]);
    echo(&other, 1);
    own.wait(number, soon(), || false).unwrap();
    let places: Vec<Place> = own.answer_head().unwrap();
    assert!(own.answer_bytes(places[0]).unwrap() == large);
    own.release(large.len(), large.len());
    let end = own.answer_bytes(Place { offset: KEPT_BYTES + (2 << 20), length: 4 }).unwrap();
    assert_eq!(end, [0; 4]);
}
