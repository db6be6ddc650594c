import argparse
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.cuda.amp import autocast, GradScaler
def get_args():
    p = argparse.ArgumentParser(); p.add_argument('--bs', type=int, default=32); p.add_argument('--amp', action='store_true'); p.add_argument("--gpu", type=int, default=0)
    p.add_argument('--resume', default='')
    return p.parse_args()
args = get_args()
torch.manual_seed(0)
device = torch.device(f'cuda:{args.gpu}' if torch.cuda.is_available() else 'cpu')
def make_data():
    x = torch.randn(256, 5); return TensorDataset(x, x.sum(1, keepdim=True))
def main(args):
    data = make_data()
    loader = DataLoader(data, batch_size=args.bs, shuffle=True, pin_memory=True)
    model = nn.Linear(5, 1)
    model = model.to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=len(loader) * 2)
    start = 0
    if args.resume:
        ck = torch.load(args.resume, map_location=device)
        model.load_state_dict(ck['model']); opt.load_state_dict(ck['opt']); start = ck['epoch']
    global_step = 0
    log = open('log.csv', 'w')
    for epoch in range(start, 2):
        losses = []
        for x, y in loader:
            x = x.to(device); y = y.to(device)
            loss = ((model(x) - y) ** 2).mean()
            opt.zero_grad(); loss.backward(); opt.step(); sched.step()
            losses.append(loss.item())
            global_step += 1
            log.write(f"{global_step},{loss.item()}\n")
        print(f'epoch {epoch} loss {sum(losses)/len(losses):.5f} lr {sched.get_last_lr()[0]:.5f}')
        torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), epoch=epoch), f'ck_{epoch}.pt')
    log.close()
if __name__ == "__main__":
    main(args)
