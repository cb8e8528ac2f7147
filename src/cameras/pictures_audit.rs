//! The audit records of pictures that were published, and of those that callers saw. They never state the content of a
//! picture.

use std::collections::HashMap;

use ledge_base::names::CameraName;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;

/// The least time between two records of one camera, and of one caller who looks at it.
const RECORD_INTERVAL_MS: u64 = 3_600_000;

/// The most callers of one camera that are counted apart. Further ones are counted together.
const CALLERS_MAX: usize = 64;

/// Pictures that no record counts yet.
#[derive(Debug, Default)]
struct Uncounted {
    pictures: u64,
    last_record_ms: Option<u64>,
}

impl Uncounted {
    /// Counts a picture. Returns the number for the record that is due: at the first one, and once an hour.
    fn count(&mut self, now_ms: u64) -> Option<u64> {
        self.pictures += 1;
        if !self.is_due(now_ms) {
            return None;
        }
        self.last_record_ms = Some(now_ms);
        self.rest()
    }

    fn is_due(&self, now_ms: u64) -> bool {
        self.last_record_ms.is_none_or(|last| now_ms.saturating_sub(last) >= RECORD_INTERVAL_MS)
    }

    /// The number that is not counted yet, unless it is zero.
    fn rest(&mut self) -> Option<u64> {
        let pictures = std::mem::take(&mut self.pictures);
        (pictures > 0).then_some(pictures)
    }
}

/// The published pictures of one camera.
#[derive(Debug, Default)]
pub struct PublishedPictures(Uncounted);

impl PublishedPictures {
    /// Counts a picture at `now_ms`. Returns the record that is due: at the first one, and once an hour.
    pub fn count(&mut self, camera: &CameraName, now_ms: u64) -> Option<AuditEvent> {
        self.0.count(now_ms).map(|pictures| AuditEvent::PicturesPublished { camera: camera.clone(), pictures })
    }

    /// The record of the pictures that no record counts yet, at the end.
    pub fn rest(&mut self, camera: &CameraName) -> Option<AuditEvent> {
        self.0.rest().map(|pictures| AuditEvent::PicturesPublished { camera: camera.clone(), pictures })
    }
}

/// A record, with the caller that it is about.
pub type SeenRecord = (Principal, AuditEvent);

/// The pictures of one camera that callers saw.
#[derive(Debug, Default)]
pub struct SeenPictures(HashMap<Principal, Uncounted>);

impl SeenPictures {
    /// Counts a picture that `caller` gets at `now_ms`. Returns the records that are due: at the first one of a caller,
    /// and once an hour.
    pub fn count(&mut self, camera: &CameraName, caller: &Principal, now_ms: u64) -> Vec<SeenRecord> {
        let mut records = Vec::new();
        if self.0.len() >= CALLERS_MAX && !self.0.contains_key(caller) {
            // Those of whom nothing is to be recorded within the hour are forgotten.
            self.0.retain(|caller, uncounted| {
                let is_over = uncounted.is_due(now_ms);
                if is_over {
                    records.extend(uncounted.rest().map(|pictures| seen(camera, caller, pictures)));
                }
                !is_over
            });
        }
        let has_room = self.0.len() < CALLERS_MAX || self.0.contains_key(caller);
        let caller = if has_room { caller } else { &Principal::Others };
        let due = self.0.entry(caller.clone()).or_default().count(now_ms);
        records.extend(due.map(|pictures| seen(camera, caller, pictures)));
        records
    }

    /// The records of the views that no record counts yet, at the end.
    pub fn rest(&mut self, camera: &CameraName) -> Vec<SeenRecord> {
        let all = self.0.drain();
        all.filter_map(|(caller, mut uncounted)| Some(seen(camera, &caller, uncounted.rest()?))).collect()
    }
}

fn seen(camera: &CameraName, caller: &Principal, pictures: u64) -> SeenRecord {
    (caller.clone(), AuditEvent::PicturesSeen { camera: camera.clone(), pictures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_picture_is_recorded_and_then_an_hour_of_them() {
        let (camera, mut published) = ("yard".parse().unwrap(), PublishedPictures::default());
        let times = (0..500).map(|number| number * 10_000);
        let records = times.filter_map(|now| published.count(&camera, now));
        let counts: Vec<_> = records
            .map(|event| match event {
                AuditEvent::PicturesPublished { pictures, .. } => pictures,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(counts, [1, 360]);
        assert!(matches!(published.rest(&camera), Some(AuditEvent::PicturesPublished { pictures: 139, .. })));
        assert_eq!(published.rest(&camera), None);
    }

    #[test]
    fn each_caller_who_looks_has_a_record_and_then_one_an_hour() {
        let (camera, mut looks) = (CameraName::constant("yard"), SeenPictures::default());
        let key = |name: &str| Principal::Key(name.into());
        let record = |name: &str, pictures| seen(&camera, &key(name), pictures);
        let mut look = |name: &str, second: u64| looks.count(&camera, &key(name), second * 1000);
        assert_eq!((look("a", 0), look("b", 1)), (vec![record("a", 1)], vec![record("b", 1)]));
        assert_eq!((1..3600).map(|second| look("a", second).len()).sum::<usize>(), 0);
        assert_eq!((look("a", 3600), look("b", 3600)), (vec![record("a", 3600)], Vec::new()));
        assert_eq!(looks.rest(&camera), [record("b", 1)]);
        assert_eq!(looks.rest(&camera), []);
    }

    #[test]
    fn however_many_callers_look_few_are_remembered_and_every_picture_is_counted() {
        let (camera, mut looks, mut counted) = (CameraName::constant("yard"), SeenPictures::default(), 0);
        let mut take = |records: Vec<SeenRecord>| {
            for (_, event) in records {
                let AuditEvent::PicturesSeen { pictures, .. } = event else { panic!("{event:?}") };
                counted += pictures;
            }
        };
        for number in 0..1000_u64 {
            let caller = Principal::Key((number % 250).to_string().into());
            take(looks.count(&camera, &caller, number * 30_000));
            assert!(looks.0.len() <= CALLERS_MAX + 1);
        }
        take(looks.rest(&camera));
        assert_eq!(counted, 1000);
    }
}
