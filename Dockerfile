# nodegate as one static file in an otherwise empty image.
#
#   docker build --tag nodegate:0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --tag REGISTRY/nodegate:0.1.0 --push .
#
# Requires BuildKit. The compiler runs on the build machine's architecture and cross-compiles for the other one.

# The toolchain version is the one in rust-toolchain.toml; a test compares them.
FROM --platform=$BUILDPLATFORM rust:1.95.0-slim-bookworm AS build
ARG BUILDARCH
ARG TARGETARCH
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src

# hadolint ignore=DL3008
RUN case "$TARGETARCH" in \
        amd64) machine=x86_64 compiler=gcc-x86-64-linux-gnu ;; \
        arm64) machine=aarch64 compiler=gcc-aarch64-linux-gnu ;; \
        *) echo "nodegate is built for amd64 and arm64, not for '$TARGETARCH'" >&2; exit 1 ;; \
    esac; \
    echo "$machine-unknown-linux-gnu" > /target; \
    rustup target add "$(cat /target)"; \
    if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
        apt-get update; \
        apt-get install --yes --no-install-recommends "$compiler" "libc6-dev-$TARGETARCH-cross"; \
        rm -rf /var/lib/apt/lists/*; \
    fi

COPY . .
# Linked statically against glibc, so that the allocator and the resolver are the same as in other builds. `--target` keeps
# the flag from procedural macros, which cannot be static.
ENV RUSTFLAGS="-C target-feature=+crt-static" \
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=nodegate-target-$TARGETARCH \
    cargo build --profile dist --locked --bin nodegate --target "$(cat /target)"; \
    install -D "target/$(cat /target)/dist/nodegate" /image/nodegate; \
    if readelf --program-headers /image/nodegate | grep INTERP; then echo "the program is not static" >&2; exit 1; fi; \
    install -d /image/tmp /image/var/lib/nodegate

FROM scratch
LABEL org.opencontainers.image.title="nodegate" \
      org.opencontainers.image.description="Admission webhook for Kubernetes Nodes: labels and taints them before anything can be scheduled on them, and controls who may change them" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --chmod=644 LICENSE /LICENSE
COPY --from=build /image/nodegate /nodegate
# Without a certificate, `serve` creates one here, and `demo` writes to /tmp. Pods of the chart write nothing.
COPY --from=build --chown=65532:65532 /image/var/lib/nodegate /var/lib/nodegate
COPY --from=build --chown=65532:65532 /image/tmp /tmp
WORKDIR /var/lib/nodegate
USER 65532:65532
# In a container, loopback is not reachable from outside. Memory that is freed goes back to the system at once: without that, the
# largest reviews that anyone can send take twice as much of the pod's limit.
ENV MIMALLOC_PURGE_DELAY=0 \
    NODEGATE_LISTEN=0.0.0.0:8443 \
    NODEGATE_PROBE_LISTEN=0.0.0.0:8080
EXPOSE 8443 8080
ENTRYPOINT ["/nodegate"]
CMD ["serve"]
