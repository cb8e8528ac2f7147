//! Placement of a model's instances: their cores and their number, from its model config and the machine's cores.

use std::time::Duration;

use super::super::scheduling::instance_spec::InstanceScale;
use super::model_config::InstanceGroup;
use super::profile::RunProfileChoice;

/// Default time that calls may wait for an instance while a core is free, before another one is loaded. It is two runs
/// of a small model: two callers that coincide are answered by then, a load too high for one instance is not.
const DEFAULT_TARGET_QUEUE_TIME: Duration = Duration::from_millis(10);

/// Returns the workers that may run the model (indices into `cores`; empty is all) and the numbers of its instances.
/// The measured `choice` decides the settings that the model config leaves open. `Err` says which part of the model
/// config this machine cannot satisfy.
pub fn place(
    group: &InstanceGroup,
    cores: &[usize],
    keep_alive: Option<Duration>,
    choice: Option<RunProfileChoice>,
) -> Result<(Vec<usize>, InstanceScale), String> {
    let workers: Vec<usize> = cores
        .iter()
        .enumerate()
        .filter(|(_, cpu)| group.cores.is_empty() || group.cores.contains(cpu))
        .map(|(worker, _)| worker)
        .collect();
    if workers.is_empty() {
        return Err(format!(
            "instance_group.cores is {:?}, but models may only run on the cores {cores:?}",
            group.cores
        ));
    }

    // A run cannot have more cores than there are: a model config that was made for a larger machine works.
    let threads = group.threads.or(choice.map(|choice| choice.threads)).unwrap_or(1).clamp(1, workers.len());
    let fit = (workers.len() / threads).max(1);
    let min = group.count.or(group.min).unwrap_or(1);
    let measured = choice.map(|choice| choice.instances.clamp(1, fit));
    let max = group.count.or(group.max).or(measured).unwrap_or(fit).max(min);

    let own = group.keep_alive_s.map(|seconds| (seconds > 0).then(|| Duration::from_secs(seconds)));
    let scale = InstanceScale {
        min,
        max,
        threads,
        target_queue_time: group.target_queue_ms.map_or(DEFAULT_TARGET_QUEUE_TIME, Duration::from_millis),
        keep_alive: own.unwrap_or(keep_alive),
    };
    Ok((if group.cores.is_empty() { Vec::new() } else { workers }, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(group: &InstanceGroup, cores: &[usize]) -> (usize, usize, usize) {
        let scale = place(group, cores, None, None).unwrap().1;
        (scale.min, scale.max, scale.threads)
    }

    #[test]
    fn without_a_word_there_is_one_instance_and_at_most_one_a_core() {
        assert_eq!(scale(&InstanceGroup::default(), &[0, 1, 2, 3]), (1, 4, 1));
    }

    #[test]
    fn instances_times_threads_fill_the_cores_and_no_more() {
        let group = InstanceGroup { threads: Some(2), ..InstanceGroup::default() };
        assert_eq!(scale(&group, &[0, 1, 2, 3, 4]), (1, 2, 2));
        let group = InstanceGroup { threads: Some(64), ..InstanceGroup::default() };
        assert_eq!(scale(&group, &[0, 1]), (1, 1, 2));
        let group = InstanceGroup { count: Some(3), ..InstanceGroup::default() };
        assert_eq!(scale(&group, &[0, 1]), (3, 3, 1));
    }

    #[test]
    fn a_model_runs_on_the_cores_that_it_names_or_is_refused() {
        let group = InstanceGroup { cores: vec![3, 5], ..InstanceGroup::default() };
        let (workers, scale) = place(&group, &[1, 3, 5], None, None).unwrap();
        assert_eq!((workers, scale.max), (vec![1, 2], 2));
        assert!(place(&group, &[0, 1], None, None).unwrap_err().contains("[0, 1]"));
    }

    #[test]
    fn zero_seconds_keep_a_model_alive_for_ever() {
        let default = Some(Duration::from_mins(1));
        let keep = |seconds| {
            let group = InstanceGroup { keep_alive_s: seconds, ..InstanceGroup::default() };
            place(&group, &[0], default, None).unwrap().1.keep_alive
        };
        assert_eq!([keep(None), keep(Some(0)), keep(Some(5))], [default, None, Some(Duration::from_secs(5))]);
    }
}
