# A static binary in an empty image. Builds for the platform it is built on:
#   docker buildx build --platform linux/amd64,linux/arm64 -t nodegate .
FROM rust:1.95.0-bookworm AS build
WORKDIR /src
# Everything it needs is in the base image: aws-lc is compiled by the C compiler there.
COPY Cargo.toml Cargo.lock build.rs rust-toolchain.toml ./
COPY src src
COPY examples examples
COPY tests tests
COPY benches benches
# glibc, linked statically: nothing is looked up by name at run time, so no shared library is missed.
RUN target="$(rustc -vV | sed -n 's/^host: //p')" \
 && RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --bin nodegate --target "$target" \
 && cp "target/$target/release/nodegate" /nodegate

FROM scratch
LABEL org.opencontainers.image.title=nodegate \
      org.opencontainers.image.description="Admission webhook for Kubernetes Nodes" \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /nodegate /nodegate
COPY LICENSE /LICENSE
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["/nodegate"]
CMD ["serve"]
