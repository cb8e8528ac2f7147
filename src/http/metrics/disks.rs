//! The metrics of the disks under the stores of this box.

use std::fmt::Error;

use ledge_base::telemetry::system::{DiskSpace, StoreFolder};
use ledge_part::metrics::{family, gauge_value, label};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

/// Writes the free space of the disk under each store.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, stores: &[StoreFolder]) -> Result<(), Error> {
    let disks: Vec<_> =
        stores.iter().filter_map(|store| Some((store, DiskSpace::under(&store.folder).ok()?))).collect();
    let samples = |figure: fn(&StoreFolder, &DiskSpace) -> u64| {
        let sample = move |(store, disk): &(&StoreFolder, DiskSpace)| {
            (label("store", store.store), ConstGauge::new(gauge_value(figure(store, disk))))
        };
        disks.iter().map(sample).collect::<Vec<_>>()
    };
    let help = "Free space of the disk that a store is on";
    family(encoder, "disk_available_bytes", help, samples(|_, disk| disk.available_bytes))?;
    let help = "Size of the disk that a store is on";
    family(encoder, "disk_size_bytes", help, samples(|_, disk| disk.total_bytes))?;
    let help = "Free space below which a store takes no more";
    family(encoder, "disk_reserve_bytes", help, samples(|store, _| store.reserve_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_will_be_made_is_on_the_disk_of_the_folder_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let stores =
            vec![StoreFolder { store: "audit", folder: folder.path().join("not/yet"), reserve_bytes: 1 << 20 }];
        let samples = ledge_part::metrics::samples(move |encoder| encode(encoder, &stores));
        assert_eq!(samples.len(), 3, "{samples:?}");
        assert_eq!(samples[2], "ledge_disk_reserve_bytes{store=\"audit\"} 1048576");
    }
}
