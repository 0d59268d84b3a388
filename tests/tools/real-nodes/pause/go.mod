// The program of a pod's sandbox in `just real-nodes`; `../build` compiles it.
module nodegate.dev/tests/tools/real-nodes/pause

go 1.26.0
