# Everything goes into target/ and .ledge/ of this checkout; `make help` lists the targets.

PYTHON ?= python3

# ONNX Runtime sends telemetry otherwise. Ledge sees to that itself; this is for the Python tools.
export ORT_DISABLE_TELEMETRY := 1

# The architecture of packages and images: ARCH=amd64 or arm64 [that of this machine].
arch = $(addprefix --arch ,$(ARCH))

# The tests find the files of the set-up there.
in_tests = LEDGE_TEST_ROOT=$(CURDIR)/.ledge PYTHON=$(PYTHON)
published = $(if $(PUBLISHER),--publisher $(PUBLISHER))
nextest = $(in_tests) $(PYTHON) tests/nextest .ledge/peers/cargo/bin/cargo-nextest --workspace --all-features --locked

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-peers setup-feast setup-tuf setup-otlp setup-deepstack setup-openai setup-azure setup-grpc setup-kserve setup-kubernetes setup-tables setup-schemathesis setup-homeassistant setup-axe setup-typescript setup-documents setup-platform catalogue build build-dist build-bench run test test-peers test-peers-all test-quantize test-platform test-fleet test-documents soak hostile setup-packages setup-root deb rpm image twice test-aarch64 sbom release-check bench bench-fleet bench-peers clean
.NOTPARALLEL:

help: ## describe each target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## fetch the inference runtimes and build the models into .ledge/ (once; needs the network; MODELS=coco_detector_512 for the optional one)
	@$(need_python)
	@$(PYTHON) models/setup $(addprefix --model ,$(MODELS)) $(arch)

setup-test: ## the same, and what the tests need: small models, a client library, cargo-nextest
	@$(need_python)
	@$(PYTHON) models/setup --test
	@$(PYTHON) benches/peers/fetch.py cargo

build: ## compile the release binary, target/release/ledge (FEATURES=full: with Parquet files and encrypted backups)
	cargo build --release --locked $(if $(FEATURES),--features $(FEATURES))

build-dist: ## compile the binary as packages have it, target/dist/ledge: optimized across crates, in twice the time
	cargo build --profile dist --features full --locked

build-bench: build-dist ## compile ledge-bench, which measures, next to it: target/dist/ledge-bench
	cargo build --profile dist --package ledge-bench --locked

run: setup build ## set up, build, start Ledge on port 8000 and classify a photograph
	@PYTHON=$(PYTHON) models/demo.sh

test: setup-test ## set up everything that the tests need, and run them all
	$(nextest)

setup-peers: setup-test ## install the brokers, clients and tools that test-peers needs (as root, or by sudo)
	@tests/peers/setup

setup-feast: setup-test ## install Feast's SDK into .ledge/peers/feast (minutes and 560 MB, once), for test-peers-all
	$(PYTHON) benches/peers/fetch.py feast

setup-tuf: setup-test ## install the reference implementation of TUF into .ledge/peers/tuf (once), for test-peers
	$(PYTHON) benches/peers/fetch.py tuf

setup-otlp: setup-test ## install the schema of OpenTelemetry into .ledge/peers/otlp (once), for test-peers
	$(PYTHON) benches/peers/fetch.py otlp

setup-deepstack: setup-test ## install a client of DeepStack's interface into .ledge/peers/deepstack (once), for test-peers
	$(PYTHON) benches/peers/fetch.py deepstack

setup-openai: setup-test ## install OpenAI's client into .ledge/peers/openai (once), for test-peers
	$(PYTHON) benches/peers/fetch.py openai

setup-azure: setup-test ## install Azure's client for documents into .ledge/peers/azure (once), for test-peers
	$(PYTHON) benches/peers/fetch.py azure

setup-grpc: setup-test ## install Triton's client for gRPC into .ledge/peers/grpc (once), for test-peers
	$(PYTHON) benches/peers/fetch.py grpc

setup-kserve: setup-test ## install KServe's client into .ledge/peers/kserve (480 MB, once), for test-peers-all
	$(PYTHON) benches/peers/fetch.py kserve

setup-kubernetes: setup-test setup-peers ## install the schemas of Kubernetes and of the Prometheus Operator into .ledge/peers/kubernetes, kustomize and docker-compose next to it (once), for test-peers-all
	$(PYTHON) benches/peers/fetch.py kubernetes
	@tests/peers/setup-kubernetes

setup-tables: setup-test ## install scikit-learn, XGBoost, LightGBM and their converters into .ledge/peers/tables (430 MB, once), for test-peers-all
	$(PYTHON) benches/peers/fetch.py tables

setup-schemathesis: setup-test ## install Schemathesis, which fuzzes by /openapi.json, into .ledge/peers/schemathesis (once), for test-peers-all
	$(PYTHON) benches/peers/fetch.py schemathesis

setup-homeassistant: setup-test ## install Home Assistant's schemas of MQTT discovery into .ledge/peers/homeassistant (once), for test-peers-all
	$(PYTHON) benches/peers/fetch.py homeassistant

setup-axe: setup-test ## install axe-core, which looks for what keeps people out of a page, into .ledge/peers/axe (once), for test-platform and test-peers-all
	$(PYTHON) benches/peers/fetch.py axe

setup-typescript: setup-peers ## install the TypeScript compiler, which checks the types of the page, into .ledge/peers/typescript (once), for test-peers
	@mkdir -p .ledge/peers/typescript && cp tests/peers/typescript/package*.json .ledge/peers/typescript
	npm ci --ignore-scripts --no-audit --no-fund --prefix .ledge/peers/typescript

setup-documents: setup-test ## install what reads PDF files into .ledge/peers/documents (once), for benches/documents/collect.py
	$(PYTHON) benches/peers/fetch.py documents

test-peers: setup-peers setup-tuf setup-otlp setup-deepstack setup-openai setup-azure setup-grpc setup-typescript ## run real clients, servers and brokers against Ledge, one round of each (quarter of an hour; may need root)
	@failed=0; $(MAKE) -k test-documents test-platform || failed=1; $(nextest) --test peers --profile short || failed=1; exit $$failed

test-peers-all: setup-root setup-packages setup-feast setup-tuf setup-otlp setup-deepstack setup-openai setup-azure setup-grpc setup-kserve setup-kubernetes setup-tables setup-schemathesis setup-homeassistant setup-axe setup-typescript ## the same with every client, CPU, attack and package (before a release)
	@failed=0; $(MAKE) -k test-quantize test-documents test-platform test-fleet || failed=1; $(nextest) --test peers || failed=1; exit $$failed

soak: setup-test setup-root setup-platform ## a million MQTT requests, then 200 kills, power cuts and more under feature writes, at every step of an update, and while the audit log is copied, with tables; the packages' models and the image on a box of 1 GiB (SOAK_REQUESTS=N, FAULT_SEED=N); last an hour of normal load, which may set off no alert (SOAK_MINUTES=N)
	$(in_tests) cargo test --release --all-features --locked --test peers -- --ignored --nocapture a_million_requests
	$(in_tests) cargo test --release --all-features --locked --test peers -- --ignored --nocapture --test-threads=1 interrupted::
	$(in_tests) cargo test --release --all-features --locked --test it -- --ignored --nocapture --test-threads=1 feature_faults:: history_faults:: update_faults::an_update update_trials::twenty audit_faults:: audit_quota:: compiled_cache:: right_answers:: inbox::
	$(in_tests) cargo test --release --all-features --locked --test peers -- --ignored --nocapture small_box::
	$(in_tests) cargo test --release --all-features --locked --test peers -- --ignored --nocapture an_hour_of_normal_load

hostile: setup-test setup-schemathesis ## ten minutes of Schemathesis against /openapi.json, then five of hostile sockets, with figures (HOSTILE_MINUTES=N)
	$(in_tests) cargo test --release --all-features --locked --test peers -- --ignored --nocapture schemathesis::
	$(in_tests) cargo test --release --all-features --locked --test it -- --ignored --nocapture hostile_clients::

test-quantize: ## quantize small models with models/quantize (its packages are fetched the first time; Python 3.11 or newer)
	@$(need_python)
	$(PYTHON) -B tests/unittests models/quantize/tests

test-documents: ## test the rules by which benches/documents compares answers with the truth
	@$(need_python)
	$(PYTHON) -B tests/unittests benches/documents/tests

setup-platform: ## install ledge-platform, which signs models and steers rollouts, into .ledge/platform (Python 3.11 or newer)
	@$(need_python)
	$(PYTHON) packaging/platform/setup --s3

catalogue: setup setup-platform ## sign the models of the set-up as a catalogue for `ledge models add`, target/catalogue; its keys are in .ledge/catalogue-keys
	PYTHONPATH=packaging/platform .ledge/platform/bin/python3 -B -m ledge_platform catalogue .ledge/models target/catalogue --keys .ledge/catalogue-keys

test-platform: setup-peers setup-axe ## test the file of the publisher, and ledge-platform with python-tuf's client, nginx, mosquitto, an S3 server, apt, dnf and Chromium
	@$(need_python)
	$(PYTHON) packaging/platform/setup --s3 --pkcs11 --test
	cargo build --workspace --all-features --locked --bin ledge
	.ledge/platform/bin/python3 -B tests/unittests packaging/build/tests
	.ledge/platform/bin/python3 -B tests/unittests packaging/platform/tests

test-fleet: setup-peers setup-packages ## run the script of docs/fleet.md with 50 real boxes, three of them booted Debians whose package is upgraded, boxes over months with wrong clocks, and attacks on joining (half an hour, as root)
	@$(need_python)
	$(PYTHON) packaging/platform/setup --s3 --pkcs11 --test
	cargo build --workspace --all-features --locked --bin ledge
	.ledge/platform/bin/python3 -B tests/unittests packaging/platform/tests/fleet --alone

setup-packages: ## install cargo-deb and cargo-generate-rpm, which make packages (once, minutes)
	@$(PYTHON) packaging/build/tools.py

setup-root: setup-peers ## make the Debian roots that packages are installed in, and the virtual machine of the unit, for test-peers-all (once; as root, or by sudo)
	@tests/peers/setup-root

deb: setup ## make the Debian packages in target/packages, in a clean root of Debian 11: ledge, ledge-slim, ledge-sentences, ledge-dbgsym (needs mmdebstrap and bubblewrap; PACKAGE=--fast: larger, sooner; ARCH=arm64: for aarch64, on any machine; PUBLISHER=FILE: packaging/publisher.toml.example)
	$(PYTHON) packaging/build/root.py $(arch) deb $(published) $(PACKAGE)

rpm: setup ## make the rpm packages in target/packages, in the same root: ledge, ledge-slim, ledge-sentences, ledge-debuginfo (PACKAGE, ARCH, PUBLISHER as above)
	$(PYTHON) packaging/build/root.py $(arch) rpm $(published) $(PACKAGE)

image: setup ## make OCI images in target/packages: ledge, and ledge-slim without models (needs mmdebstrap and buildah; IMAGE="--format docker", --zstd; PACKAGE, ARCH, PUBLISHER as above)
	$(PYTHON) packaging/build/root.py $(arch) stage $(published) $(PACKAGE)
	$(PYTHON) packaging/image target/packages/stage $(arch) $(IMAGE)

test-aarch64: ## install the deb of `make deb ARCH=arm64` on an emulated arm64 machine with Debian's kernel, and ask it for a photograph and a document (as root; an hour)
	$(PYTHON) tests/peers/aarch64

twice: setup ## build deb and rpm a second time, as another user in another place and at another time, and compare them byte for byte (as root; TWICE="--binary FILE deb")
	$(PYTHON) packaging/build/twice.py $(TWICE)

sbom: ## write target/packages/ledge.cdx.json, the list of all that packages bring, as CycloneDX 1.5; each package has its own in it
	$(PYTHON) packaging/build sbom $(published)

release-check: sbom ## checks of a release besides the tests: licences, sources, and known flaws of the linked crates
	@packaging/release-check

bench: setup-test build-bench ## print the budget table, and fail when a budget is missed: Ledge next to the runtime in-process (a quarter of an hour besides its builds; BENCH=--quick, BENCH=--long)
	$(PYTHON) benches/peers/fetch.py inprocess
	$(PYTHON) benches/budget $(BENCH)

bench-fleet: ## simulate 10,000 boxes through rollouts of days, in minutes; figures, and a plot in target/fleet.svg
	@$(need_python)
	$(PYTHON) packaging/platform/setup
	.ledge/platform/bin/python3 benches/fleet/simulate.py --plot target/fleet.svg --json target/fleet.json

bench-peers: setup-test build-bench ## fetch Triton, MLServer, mosec and Feast, and run them interleaved with Ledge (BENCH as above)
	$(PYTHON) benches/peers/fetch.py
	$(PYTHON) benches/budget --peers $(BENCH)

clean: ## remove what cargo compiled; .ledge/, with the downloads and your own models, stays
	cargo clean

# The set-up itself names whatever else is missing, but it is written in Python.
define need_python
command -v $(PYTHON) >/dev/null || { \
	echo 'This machine lacks:'; \
	echo '  - $(PYTHON): Python 3.9 or newer with pip; Debian and Ubuntu: apt install python3-pip, Fedora: dnf install python3-pip'; \
	for tool in cargo rustc cc curl; do command -v $$tool >/dev/null || echo "  - $$tool"; done; \
	exit 1; }
endef
