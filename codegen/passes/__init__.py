"""The passes from Tile IR to Kernel IR, one idea each; `codegen.lower` holds their order."""
